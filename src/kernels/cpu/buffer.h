// Uninitialised scratch memory for plain types, aligned for vectors. Large pieces ask for large pages: a buffer is new
// in each call, and touching it page by page would cost more than some of the sums.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>

#ifndef CONTEXTPOOL_ARCH
#error "CONTEXTPOOL_ARCH names the namespace of this instruction set; CMakeLists.txt sets it"
#endif

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

template <class T>
class Buffer {
 public:
  explicit Buffer(std::int64_t size = 0) { reserve(size); }
  ~Buffer() { release(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // At least `size` elements; what was there is lost when it has to grow.
  void reserve(std::int64_t size) {
    if (size <= size_) return;
    release();
    const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(T);
    alignment_ = bytes < kLarge ? kVector : kLargePage;
    data_ = static_cast<T*>(::operator new(bytes, alignment_));
    if (alignment_ == kLargePage) madvise(data_, bytes, MADV_HUGEPAGE);
    size_ = size;
  }
  void release() {
    if (data_ != nullptr) ::operator delete(data_, alignment_);
    data_ = nullptr;
    size_ = 0;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](std::int64_t i) { return data_[i]; }
  const T& operator[](std::int64_t i) const { return data_[i]; }

 private:
  static constexpr std::align_val_t kVector{64};
  static constexpr std::align_val_t kLargePage{std::size_t{1} << 21};
  static constexpr std::size_t kLarge = std::size_t{1} << 22;
  std::align_val_t alignment_ = kVector;
  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
