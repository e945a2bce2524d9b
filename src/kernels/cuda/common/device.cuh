// What device code of every operator uses: storage types and float32, numbers, copies to shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace contextpool::cuda {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLog2eRest = 1.925963e-8f;  // what kLog2e lacks
constexpr float kLn2 = 0.6931471805599453f;

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float to_float(__half v) { return __half2float(v); }
template <typename T>
__device__ inline T from_float(float v);
template <>
__device__ inline float from_float<float>(float v) {
  return v;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ inline __half from_float<__half>(float v) {
  return __float2half_rn(v);
}

// Two values of the storage type side by side (half types: in one register).
template <typename T>
struct Pair;
template <>
struct Pair<float> {
  float low, high;
  __device__ static Pair of(float low, float high) { return {low, high}; }
  __device__ float first() const { return low; }
  __device__ float second() const { return high; }
};
template <>
struct Pair<__nv_bfloat16> {
  unsigned bits;
  __device__ static Pair of(float low, float high) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return {*reinterpret_cast<const unsigned*>(&v)};
  }
  __device__ float first() const { return __uint_as_float(bits << 16); }
  __device__ float second() const { return __uint_as_float(bits & 0xffff0000u); }
};
template <>
struct Pair<__half> {
  unsigned bits;
  __device__ static Pair of(float low, float high) {
    const __half2 v = __floats2half2_rn(low, high);
    return {*reinterpret_cast<const unsigned*>(&v)};
  }
  __device__ float first() const { return __low2float(*reinterpret_cast<const __half2*>(&bits)); }
  __device__ float second() const { return __high2float(*reinterpret_cast<const __half2*>(&bits)); }
};

__device__ inline float power_of_two(float v) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
  return result;
}
__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }
__device__ inline float not_a_number() { return __int_as_float(0x7fc00000); }

// Asynchronous copies of 16 bytes from global to shared memory.
__device__ inline void copy16(void* shared, const void* global, bool valid) {
  const auto s = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;  // 0: fills with zeros, reads nothing
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(s), "l"(global), "r"(bytes));
}
__device__ inline void copy16(void* shared, const void* global) {
  const auto s = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(s), "l"(global));
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;\n" ::); }
template <int kLeft>
__device__ inline void copy_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kLeft));
}

}  // namespace contextpool::cuda
