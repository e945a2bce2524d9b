// Launches. A kernel may be brought to the multiprocessors while the one before it ends (compute capability 9.0 and
// up), so each begins with after_previous(): nothing that the stream works on may be read or written before.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

namespace contextpool::cuda {

// Waits until every kernel before this one is done and its writes are seen.
__device__ inline void after_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

struct DeviceTraits {
  int device = 0;
  bool early = false;  // whether kernels may come early
};

inline cudaError_t current_device(DeviceTraits& traits) {
  constexpr int kDevices = 64;
  static std::atomic<int> major[kDevices];  // 0: not asked yet
  if (const cudaError_t error = cudaGetDevice(&traits.device); error != cudaSuccess) return error;
  int value = traits.device < kDevices ? major[traits.device].load(std::memory_order_relaxed) : 0;
  if (value == 0) {
    const cudaError_t error = cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, traits.device);
    if (error != cudaSuccess) return error;
    if (traits.device < kDevices) major[traits.device].store(value, std::memory_order_relaxed);
  }
  traits.early = value >= 9;
  return cudaSuccess;
}

// A kernel's limit of shared memory is raised once for each device, not at every call.
template <auto kKernel>
cudaError_t allow_shared(int device, int bytes) {
  constexpr int kDevices = 64, kAlways = 48 << 10;
  static std::atomic<int> allowed[kDevices];
  if (bytes <= kAlways || (device < kDevices && allowed[device].load(std::memory_order_relaxed) >= bytes)) {
    return cudaSuccess;
  }
  const cudaError_t error = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess && device < kDevices) allowed[device].store(bytes, std::memory_order_relaxed);
  return error;
}

// bytes: of dynamic shared memory.
template <auto kKernel, typename... Arguments>
cudaError_t launch(dim3 grid, int threads, int bytes, cudaStream_t stream, const Arguments&... arguments) {
  DeviceTraits traits;
  if (const cudaError_t error = current_device(traits); error != cudaSuccess) return error;
  if (const cudaError_t error = allow_shared<kKernel>(traits.device, bytes); error != cudaSuccess) return error;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = traits.early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kKernel, arguments...);
}

inline dim3 blocks_for(std::int64_t items, int each) { return dim3(static_cast<unsigned>((items + each - 1) / each)); }

}  // namespace contextpool::cuda
