// What the parts of the Python module share.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

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
      memory_ = std::unique_ptr<T[], Free>(static_cast<T*>(std::aligned_alloc(64, (n * sizeof(T) + 63) / 64 * 64)));
      if (!memory_) throw std::bad_alloc();
      size_ = n;
    }
    return memory_.get();
  }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> memory_;
  size_t size_ = 0;
};

}  // namespace quire
