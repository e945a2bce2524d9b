// What planning is made of: quick functions for bounds, and log weights of tokens.
#pragma once

#include "kernels/cuda/pool1d/plan/plan.h"

namespace contextpool::cuda {

__device__ inline float square(float v) { return v * v; }

// Quick ones, for bounds that have room for a millionth.
__device__ inline float quick_log(float v) { return __log2f(v); }
__device__ inline float quick_inverse(float v) { return __fdividef(1.f, v); }
__device__ inline float quick_root(float v) {
  asm("sqrt.approx.f32 %0, %0;" : "+f"(v));
  return v;
}

__device__ inline float max_or_nan(float a, float b) {
  float v;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}

// What spoils every sum over it: the log weight of a token that is no weight.
__device__ inline bool nan_or_plus_infinity(float v) { return !(v < __int_as_float(0x7f800000)); }

// The level of the tree that a size asks for at most; 0: none.
__device__ inline int level_of_size(const Problem& in, const Precision& precision, float sigma) {
  const float longest = precision.reach * sigma;
  return longest < static_cast<float>(1 << kLeaf) || sigma < in.least_size ? 0
         : longest >= static_cast<float>(1 << in.tree.last)                ? in.tree.last
                                                                           : ilogbf(longest);
}

// l log2(e) of a token.
__device__ inline float token_log(const Problem& in, int batch, int j) {
  return j < in.tokens ? in.log_weight[static_cast<std::int64_t>(batch) * in.tokens + j] * kLog2e : minus_infinity();
}

// Of 32 tokens, one a lane: as in.group_max.
__device__ inline float group_max(float v) {
  const bool bad = __any_sync(0xffffffffu, nan_or_plus_infinity(v));
  for (int k = 16; k > 0; k /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, k));
  return bad ? not_a_number() : v;
}

}  // namespace contextpool::cuda
