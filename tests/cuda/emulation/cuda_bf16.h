// Stands in for CUDA's header of this name: bfloat16, rounded to nearest, ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): CUDA's names

struct __nv_bfloat16 {
  std::uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 v) { return std::bit_cast<float>(std::uint32_t{v.bits} << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  if (std::isnan(v)) return {0x7fff};
  const auto bits = std::bit_cast<std::uint32_t>(v);
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
