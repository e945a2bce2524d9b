// Uninitialised scratch memory, 64-byte aligned, for plain types.
#pragma once

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
    data_ = static_cast<T*>(::operator new(static_cast<std::size_t>(size) * sizeof(T), kAlignment));
    size_ = size;
  }
  void release() {
    if (data_ != nullptr) ::operator delete(data_, kAlignment);
    data_ = nullptr;
    size_ = 0;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](std::int64_t i) { return data_[i]; }
  const T& operator[](std::int64_t i) const { return data_[i]; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
