// Stands in for CUDA's header of this name: float16, rounded to nearest, ties to even.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): CUDA's names

struct __half {
  std::uint16_t bits;
};

inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline float __half2float(__half v) {
  const int exponent = v.bits >> 10 & 31, mantissa = v.bits & 1023;
  float size = 0;
  if (exponent == 31) {
    size = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    size = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    size = std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  }
  return (v.bits & 0x8000) != 0 ? -size : size;
}
inline __half __float2half_rn(float v) {
  if (std::isnan(v)) return {0x7fff};
  const auto sign = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16 & 0x8000);
  const float size = std::fabs(v);
  if (size >= 65520.f) return {static_cast<std::uint16_t>(sign | 0x7c00)};
  if (size < 0x1p-25f) return {sign};
  const int exponent = std::max(std::ilogb(size), -14);  // -14: also of the numbers below the normal ones
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));  // up to 2048
  // A carry out of the mantissa goes on into the exponent, as it should.
  return {static_cast<std::uint16_t>(sign | (((exponent + 14) << 10) + steps))};
}

// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
