// Where the last few tokens have stood before, latest first: a hash table to the latest place, and
// from each place a link to the one before, as in LZ77. Keys of several orders (lengths) are kept.
#pragma once

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

namespace quire::drafting {

// Memory that is zero, and takes none of the machine's until it is written. Much of it comes in huge
// pages, where the system has them: texts are looked up at places that are far from each other, and
// each page that is met for the first time takes as long as ten lookups.
template <class T>
struct Zeroed {
  static constexpr size_t much = size_t(4) << 20;  // bytes

  using value_type = T;
  Zeroed() = default;
  template <class U>
  Zeroed(const Zeroed<U>&) {}
  T* allocate(size_t count) {
#ifdef __linux__
    if (count * sizeof(T) >= much) {
      void* pages = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pages == MAP_FAILED) throw std::bad_alloc();
      madvise(pages, count * sizeof(T), MADV_HUGEPAGE);
      return static_cast<T*>(pages);
    }
#endif
    void* memory = std::calloc(count, sizeof(T));
    if (!memory) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) {
#ifdef __linux__
    if (count * sizeof(T) >= much) {
      munmap(memory, count * sizeof(T));
      return;
    }
#endif
    std::free(memory);
  }
  template <class U>
  void construct(U*) {}  // it is zero already
  template <class U, class... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
  bool operator==(const Zeroed&) const { return true; }
  bool operator!=(const Zeroed&) const { return false; }
};

template <class T>
using ZeroedVector = std::vector<T, Zeroed<T>>;

template <class Vector>
size_t bytes_of(const Vector& vector) {
  return vector.capacity() * sizeof(typename Vector::value_type);
}

// Of the `order` tokens before `end`.
inline uint64_t key_of(const uint32_t* end, int order, uint64_t seed) {
  constexpr uint64_t mixer = 0x9E3779B97F4A7C15ull;
  uint64_t key = seed;
  for (int i = 1; i <= order; i++) key = ((key << 5 | key >> 59) ^ end[-i]) * mixer;
  return key;
}

// Places are numbers above zero. The caller says in which slot the links of each are, and checks
// what it finds: other keys may share a chain.
class Chains {
 public:
  static constexpr uint32_t nowhere = 0;

  Chains(std::vector<int> orders, int bits, size_t slots)
      : orders_(std::move(orders)), bits_(bits), heads_(orders_.size() << bits),
        links_(orders_.size() * slots) {}

  int num_orders() const { return int(orders_.size()); }
  int order(int i) const { return orders_[i]; }
  size_t num_heads() const { return size_t(1) << bits_; }
  size_t num_slots() const { return links_.size() / orders_.size(); }
  size_t bytes() const { return bytes_of(heads_) + bytes_of(links_); }

  uint32_t first(int i, uint64_t key) const { return heads_[head(i, key)]; }
  uint32_t next(int i, size_t slot) const { return links_[slot * orders_.size() + i]; }

  void add(int i, uint64_t key, size_t slot, uint32_t place) {
    uint32_t& first = heads_[head(i, key)];
    links_[slot * orders_.size() + i] = first;
    first = place;
  }

  // Has the system give the pages of the heads now, rather than when somebody waits for one.
  void touch() { std::fill(heads_.begin(), heads_.end(), nowhere); }

  // Takes back the latest `add`, of these.
  void remove(int i, uint64_t key, size_t slot) { heads_[head(i, key)] = next(i, slot); }

 private:
  size_t head(int i, uint64_t key) const { return (size_t(i) << bits_) + (key >> (64 - bits_)); }

  std::vector<int> orders_;  // ascending
  int bits_;
  ZeroedVector<uint32_t> heads_, links_;  // by order; by slot, the orders of each together
};

}  // namespace quire::drafting
