// Launches. A kernel may be brought to the multiprocessors while the one before it ends (compute capability 9.0 and
// up), so each begins with after_previous(): nothing that the stream works on may be read or written before.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace contextpool::cuda {

constexpr int kMaxSharedBytes =
    99 << 10;  // bytes of shared memory that a thread block may have on every chip from 8.0 on

// Waits until every kernel before this one is done and its writes are seen.
__device__ inline void after_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// Lets the next kernel start once all thread blocks of this one have come here. For a kernel after which comes one that
// has something to do before its after_previous(): it needs what was done before this one, but nothing of this one.
// What this kernel's after_previous() waited for is done by then.
__device__ inline void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// What has been set and queried for a kernel on a device; once, not at every call.
struct KernelState {
  bool known;
  bool early;  // the code that runs waits in after_previous(), so it may come early
  int bytes;   // of dynamic shared memory that it may have
};

template <auto kKernel>
cudaError_t prepare(int bytes, KernelState& state) {
  constexpr int kDevices = 64, kAlways = 48 << 10;
  static std::atomic<KernelState> states[kDevices];
  static std::mutex setting;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (device < kDevices) state = states[device].load(std::memory_order_relaxed);
  if (state.known && state.bytes >= bytes) return cudaSuccess;
  const std::lock_guard<std::mutex> lock(setting);  // the attribute set last must be the largest
  if (device < kDevices) state = states[device].load(std::memory_order_relaxed);
  if (state.known && state.bytes >= bytes) return cudaSuccess;
  cudaFuncAttributes code;
  if (const cudaError_t error = cudaFuncGetAttributes(&code, kKernel); error != cudaSuccess) return error;
  if (bytes > kAlways) {
    const cudaError_t error = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
  }
  // A later chip may run what was compiled for 8.0.
  state = {true, code.ptxVersion >= 90 && code.binaryVersion >= 90, bytes > kAlways ? bytes : kAlways};
  if (device < kDevices) states[device].store(state, std::memory_order_relaxed);
  return cudaSuccess;
}

// What a kernel is given at launch: its dynamic shared memory.
template <typename Shared>
constexpr int shared_bytes() {
  static_assert(sizeof(Shared) <= kMaxSharedBytes);
  return static_cast<int>(sizeof(Shared));
}

// bytes: of dynamic shared memory.
template <auto kKernel, typename... Arguments>
cudaError_t launch(dim3 grid, int threads, int bytes, cudaStream_t stream, const Arguments&... arguments) {
  KernelState state{};
  if (const cudaError_t error = prepare<kKernel>(bytes, state); error != cudaSuccess) return error;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = state.early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kKernel, arguments...);
}

inline dim3 blocks_for(std::int64_t items, int each) { return dim3(static_cast<unsigned>((items + each - 1) / each)); }

}  // namespace contextpool::cuda
