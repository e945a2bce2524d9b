// Pieces of one allocation, one after the other, each at 256 bytes. With no memory it only counts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contextpool::cuda {

class Arena {
 public:
  explicit Arena(void* memory) : memory_(static_cast<unsigned char*>(memory)) {}

  template <typename T>
  T* take(std::int64_t count) {
    constexpr std::size_t kAlignment = 256;
    const std::size_t at = size_;
    size_ += (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }
  std::size_t size() const { return size_; }

 private:
  unsigned char* memory_;
  std::size_t size_ = 0;
};

}  // namespace contextpool::cuda
