// Stands in for CUDA's header of this name: the words of device code, and launches.
#pragma once

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cuda_runtime_api.h"

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): CUDA's names

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// One OS thread runs all; thread-local so that all such arrays are found together, see emulator.cpp.
#define __shared__ thread_local

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const auto &grid = config->gridDim, &block = config->blockDim;
  if (config->dynamicSmemBytes != 0) {
    std::fputs("cudaLaunchKernelEx: dynamic shared memory is not emulated\n", stderr);
    std::abort();
  }
  const auto within = [](unsigned size, unsigned most) { return size > 0 && size <= most; };
  const bool fits = within(grid.x, 0x7fffffff) && within(grid.y, 0xffff) && within(grid.z, 0xffff) &&
                    within(block.x, 1024) && within(block.y, 1024) && within(block.z, 64) &&
                    within(block.x * block.y * block.z, 1024);
  if (!fits) return cudaErrorInvalidConfiguration;
  // As at a launch, arguments are copied first, and by every thread.
  const auto launch = [&](Parameters... copies) { cuda_emulation::run(grid, block, [&] { kernel(copies...); }); };
  launch(std::forward<Arguments>(arguments)...);
  return cudaSuccess;
}

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  cuda_emulation::wait_for_block(where);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, std::source_location where = std::source_location::current()) {
  cuda_emulation::exchange(mask, 0, where);
}

namespace cuda_emulation {

template <typename T>
T from_lane(unsigned mask, T value, unsigned lane, std::source_location where) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const auto* const all = exchange(mask, bits, where);
  if (lane >= kLanes) return value;
  if ((mask >> lane & 1) == 0) {
    std::fprintf(stderr, "%s:%u: a shuffle reads lane %u, which is not in its mask\n", where.file_name(), where.line(),
                 lane);
    std::abort();
  }
  std::memcpy(&value, &all[lane], sizeof(T));
  return value;
}

}  // namespace cuda_emulation

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, std::source_location where = std::source_location::current()) {
  return cuda_emulation::from_lane(mask, value, cuda_emulation::lane() ^ static_cast<unsigned>(lanes), where);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, std::source_location where = std::source_location::current()) {
  return cuda_emulation::from_lane(mask, value, cuda_emulation::lane() + by, where);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, std::source_location where = std::source_location::current()) {
  return cuda_emulation::from_lane(mask, value, static_cast<unsigned>(lane) % cuda_emulation::kLanes, where);
}

inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float v) { return std::bit_cast<int>(v); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline float rsqrtf(float v) { return static_cast<float>(1 / std::sqrt(static_cast<double>(v))); }

// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
