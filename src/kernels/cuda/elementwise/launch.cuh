// Launches of kernels that need nothing but a grid, as a call of the runtime: these sources are plain C++ with CUDA's
// names, so that tests/cuda can run them on the CPU.
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace contextpool::cuda {

template <typename... Parameters, typename... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, int threads, cudaStream_t stream,
                          Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace contextpool::cuda
