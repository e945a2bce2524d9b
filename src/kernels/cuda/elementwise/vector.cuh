// What the kernels that pass over memory once share: values of a storage type in pieces, widened for arithmetic.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/type.h"

namespace contextpool::cuda {

constexpr int kWarp = 32;

// kCount values side by side, moved by one instruction where they are 16 bytes or fewer; the address must be a multiple
// of their size.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T at[kCount];
};

// The values of 16 bytes.
template <typename T>
constexpr int kWhole = 16 / sizeof(T);

__device__ inline float widen(float v) { return v; }
__device__ inline double widen(double v) { return v; }
__device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float widen(__half v) { return __half2float(v); }

template <typename T>
__device__ inline T narrow(float v);
template <>
__device__ inline float narrow<float>(float v) {
  return v;
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ inline __half narrow<__half>(float v) {
  return __float2half_rn(v);
}
template <typename T>
__device__ inline T narrow(double v);
template <>
__device__ inline double narrow<double>(double v) {
  return v;
}

template <typename T, int kCount>
__device__ inline Vector<T, kCount> load(const T* from) {
  return *reinterpret_cast<const Vector<T, kCount>*>(from);
}
template <typename T, int kCount>
__device__ inline void store(T* to, const Vector<T, kCount>& values) {
  *reinterpret_cast<Vector<T, kCount>*>(to) = values;
}

// The sum over a warp, in an order that is always the same; every lane has it.
__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  return v;
}

inline bool aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

}  // namespace contextpool::cuda
