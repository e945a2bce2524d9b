// dynamic_convolution on device memory: float32, bfloat16 and float16, up to 4 taps of rank 16. Plain pointers, sizes,
// strides (in elements) and a stream; nothing here allocates or waits for the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/type.h"

namespace contextpool::cuda {

// The targets are the last of the tokens. Channels of a token are contiguous, and all but x is.
struct DynamicConvolution {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t targets = 0;
  std::int64_t channels = 0;
  std::int64_t taps = 0;
  std::int64_t rank = 0;
  std::int64_t left = 0;
  bool residual = false;
  Type type = Type::f32;    // of x; not f64
  const void* x = nullptr;  // [batch, tokens, channels]
  std::int64_t x_batch_stride = 0;
  std::int64_t x_token_stride = 0;
  const float* inner = nullptr;   // [batch, targets, rank]
  const float* up = nullptr;      // [taps, channels, rank]
  const float* weight = nullptr;  // [channels, taps]
};

// Whether there are kernels for this type, these taps and sizes.
bool dynamic_convolution_fits(const DynamicConvolution& in);

// y [batch, targets, channels]
cudaError_t dynamic_convolution(const DynamicConvolution& in, void* y, cudaStream_t stream);

// Bytes of scratch memory for the backward.
std::size_t dynamic_convolution_backward_workspace(const DynamicConvolution& in);

// dy as y, dx [batch, tokens, channels], dinner as inner; sums [taps, rank + 1, channels]: of up, and in the last row
// of a tap that of weight.
cudaError_t dynamic_convolution_backward(const DynamicConvolution& in, const void* dy, void* dx, float* dinner,
                                         float* sums, void* workspace, cudaStream_t stream);

}  // namespace contextpool::cuda
