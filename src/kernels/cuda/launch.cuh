// Launches with dynamic shared memory; a kernel's limit is raised once for each device, not at every call.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

namespace contextpool::cuda {

template <auto kKernel>
cudaError_t allow_shared(int bytes) {
  constexpr int kDevices = 64;
  static std::atomic<int> allowed[kDevices];
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (device < kDevices && allowed[device].load(std::memory_order_relaxed) >= bytes) return cudaSuccess;
  const cudaError_t error = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess && device < kDevices) allowed[device].store(bytes, std::memory_order_relaxed);
  return error;
}

template <auto kKernel, typename... Arguments>
cudaError_t launch(dim3 grid, int threads, int bytes, cudaStream_t stream, const Arguments&... arguments) {
  if (const cudaError_t error = allow_shared<kKernel>(bytes); error != cudaSuccess) return error;
  kKernel<<<grid, threads, bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace contextpool::cuda
