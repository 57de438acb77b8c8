// What the parts of the Python module share.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace quire {

typedef uintptr_t Address;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// Memory that grows as needed and is kept between calls.
template <class T>
class Workspace {
 public:
  T* get(size_t n) {
    if (n > size_) {
      memory_.reset(static_cast<T*>(allocate(n * sizeof(T))));
      size_ = n;
    }
    return memory_.get();
  }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  // In huge pages, if it is large: the system maps them faster.
  static void* allocate(size_t bytes) {
    constexpr size_t line = 64, page = 2 << 20;
    size_t unit = bytes < 2 * page ? line : page;
    bytes = (bytes + unit - 1) / unit * unit;
    void* memory = std::aligned_alloc(unit, bytes);
    if (!memory) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    if (unit == page) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
  }

  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> memory_;
  size_t size_ = 0;
};

}  // namespace quire
