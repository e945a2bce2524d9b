// short_convolution on device memory: float32, bfloat16 and float16, up to 32 taps. Plain pointers, sizes, strides (in
// elements) and a stream; nothing here allocates or waits for the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/type.h"

namespace contextpool::cuda {

struct ShortConvolution {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t channels = 0;
  std::int64_t taps = 0;
  std::int64_t left = 0;
  bool residual = false;
  Type type = Type::f32;    // not f64
  const void* x = nullptr;  // [batch, tokens, channels], channels contiguous
  std::int64_t x_batch_stride = 0;
  std::int64_t x_token_stride = 0;
  const float* weight = nullptr;  // [taps, channels]
  const float* bias = nullptr;    // [channels], or none
};

// Whether there are kernels for this type, these taps and sizes.
bool short_convolution_fits(const ShortConvolution& in);

// y [batch, tokens, channels], contiguous
cudaError_t short_convolution(const ShortConvolution& in, void* y, cudaStream_t stream);

// Bytes of scratch memory for the backward.
std::size_t short_convolution_backward_workspace(const ShortConvolution& in, const void* dy, const void* dx);

// dy and dx contiguous, as x; dweight [taps, channels], and in the row after it the gradient of the bias
cudaError_t short_convolution_backward(const ShortConvolution& in, const void* dy, void* dx, float* dweight,
                                       void* workspace, cudaStream_t stream);

}  // namespace contextpool::cuda
