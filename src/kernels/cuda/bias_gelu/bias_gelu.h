// bias_gelu on device memory: float32, bfloat16 and float16. Plain pointers, sizes and a stream; nothing here allocates
// or waits for the device. Everything is contiguous.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/type.h"

namespace contextpool::cuda {

struct BiasGelu {
  std::int64_t rows = 0;
  std::int64_t features = 0;
  Type type = Type::f32;  // not f64
  const void* x = nullptr;
  const float* bias = nullptr;
};

cudaError_t bias_gelu(const BiasGelu& in, void* y, cudaStream_t stream);

// Bytes of scratch memory for the backward.
std::size_t bias_gelu_backward_workspace(const BiasGelu& in);

cudaError_t bias_gelu_backward(const BiasGelu& in, const void* dy, void* dx, float* dbias, void* workspace,
                               cudaStream_t stream);

}  // namespace contextpool::cuda
