// Stands in for CUDA's header of this name: what the runtime's functions do, on the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulator.h"

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): CUDA's names

enum cudaError_t {  // as CUDA numbers them
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNotSupported = 801
};
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
using cudaStream_t = struct CUstream_st*;

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/,
                                   cudaStream_t /*stream*/ = nullptr) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t /*stream*/ = nullptr) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
