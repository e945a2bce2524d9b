// For tests of CUDA kernels on the CPU: values in memory of any storage type, and results that are near the formula's.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "emulation/emulator.h"
#include "kernels/type.h"

namespace contextpool::testing {

using Doubles = std::vector<double>;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

inline std::size_t bytes_of(Type type) {
  switch (type) {
    case Type::f64: return 8;
    case Type::f32: return 4;
    default: return 2;
  }
}
inline const char* name_of(Type type) {
  switch (type) {
    case Type::f64: return "float64";
    case Type::f32: return "float32";
    case Type::bf16: return "bfloat16";
    default: return "float16";
  }
}
// The largest relative error of rounding to the nearest value of the type.
inline double rounding_of(Type type) {
  switch (type) {
    case Type::f64: return 0x1p-53;
    case Type::f32: return 0x1p-24;
    case Type::bf16: return 0x1p-8;
    default: return 0x1p-11;
  }
}

// Memory of exactly that many values, so that the address sanitizer sees every access beyond; NaN until written.
class Values {
 public:
  // skipped: values between an address of 64 bytes and the first.
  Values(Type type, std::size_t count, std::size_t skipped = 0) : type_(type), count_(count), skipped_(skipped) {
    void* memory = nullptr;
    const auto bytes = (skipped + count) * bytes_of(type);
    if (posix_memalign(&memory, 64, bytes) != 0) std::abort();
    if (bytes > 0) std::memset(memory, 0xff, bytes);
    memory_.reset(static_cast<std::byte*>(memory));
  }
  // Each rounded to the type.
  Values(Type type, const Doubles& values, std::size_t skipped = 0) : Values(type, values.size(), skipped) {
    for (std::size_t i = 0; i < count_; ++i) set(i, values[i]);
  }

  template <typename T = void>
  T* data() {
    return reinterpret_cast<T*>(at(0));
  }
  template <typename T = void>
  const T* data() const {
    return reinterpret_cast<const T*>(at(0));
  }
  Type type() const { return type_; }
  std::size_t size() const { return count_; }
  void set(std::size_t i, double v) {
    const auto as_float = static_cast<float>(v);
    switch (type_) {
      case Type::f64: return put(i, v);
      case Type::f32: return put(i, as_float);
      case Type::bf16: return put(i, __float2bfloat16_rn(as_float));
      case Type::f16: return put(i, __float2half_rn(as_float));
    }
  }
  double operator[](std::size_t i) const {
    switch (type_) {
      case Type::f64: return get<double>(i);
      case Type::f32: return get<float>(i);
      case Type::bf16: return __bfloat162float(get<__nv_bfloat16>(i));
      default: return __half2float(get<__half>(i));
    }
  }
  bool same_bits(const Values& other) const {
    return count_ == other.count_ && std::memcmp(at(0), other.at(0), count_ * bytes_of(type_)) == 0;
  }

 private:
  std::byte* at(std::size_t i) const { return memory_.get() + (skipped_ + i) * bytes_of(type_); }
  template <typename T>
  void put(std::size_t i, T v) {
    std::memcpy(at(i), &v, sizeof(T));
  }
  template <typename T>
  T get(std::size_t i) const {
    T v;
    std::memcpy(&v, at(i), sizeof(T));
    return v;
  }
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  Type type_;
  std::size_t count_, skipped_;
  std::unique_ptr<std::byte, Free> memory_;
};

inline Values draw(Type type, std::size_t count, unsigned seed, std::size_t skipped = 0, double scale = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Values values(type, count, skipped);
  for (std::size_t i = 0; i < count; ++i) values.set(i, scale * normal(random));
  return values;
}

inline double rounded(Type type, double v) { return Values(type, Doubles{v})[0]; }

// A sum in float64, and of its terms' sizes.
struct Sum {
  double value = 0, size = 0;
  Sum& operator+=(double term) {
    value += term;
    size += std::fabs(term);
    return *this;
  }
};

// One rounding to the type of `got`, and `roundings` of arithmetic in float32 (float64 beside it) beside each size.
inline void expect_near(const Values& got, const std::vector<Sum>& want, double roundings) {
  ASSERT_EQ(got.size(), want.size());
  const double step = got.type() == Type::f64 ? 0x1p-53 : 0x1p-24;
  int misses = 0;
  for (std::size_t i = 0; i < want.size() && misses < 5; ++i) {
    const auto& [value, size] = want[i];
    if (std::isnan(value) ? std::isnan(got[i]) : got[i] == value) continue;
    const double least = got.type() == Type::f16 ? 0x1p-25 : 0;
    const double bound = rounding_of(got.type()) * std::fabs(value) + roundings * step * size + least;
    if (std::fabs(got[i] - value) <= bound) continue;
    ADD_FAILURE() << "value " << i << " is " << got[i] << ", but should be " << value << " within " << bound;
    ++misses;
  }
}

// results() as it is with threads and blocks in one order; the bits must be the same in the other.
template <typename Results>
std::vector<Values> in_any_order(Results results) {
  using cuda_emulation::Order;
  cuda_emulation::set_order(Order::backwards);
  const std::vector<Values> others = results();
  cuda_emulation::set_order(Order::forwards);
  std::vector<Values> all = results();
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(all[i].same_bits(others[i])) << "result " << i << " depends on the order of threads";
  }
  return all;
}

}  // namespace contextpool::testing
