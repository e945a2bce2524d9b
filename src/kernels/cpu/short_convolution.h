// short_convolution on plain memory: forward and backward, all dtypes. The instruction set is chosen at run time.
#pragma once

#include <cstdint>

#include "kernels/cpu/parallel.h"
#include "kernels/type.h"

namespace contextpool::cpu {

// Channels of a token are contiguous; strides count elements. weight and bias are double for f64, else float.
struct ShortConvolution {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t channels = 0;
  std::int64_t taps = 0;
  std::int64_t left = 0;
  bool residual = false;
  Type type = Type::f32;
  const void* x = nullptr;  // [batch, tokens, channels]
  std::int64_t x_batch_stride = 0;
  std::int64_t x_token_stride = 0;
  const void* weight = nullptr;  // [taps, channels]
  const void* bias = nullptr;    // [channels], or none
};

// y [batch, tokens, channels]
void short_convolution(const ShortConvolution& in, void* y, const Parallel& parallel);

// dy [batch, tokens, channels] -> dx of that shape, dweight [taps, channels], dbias [channels]
void short_convolution_backward(const ShortConvolution& in, const void* dy, void* dx, void* dweight, void* dbias,
                                const Parallel& parallel);

}  // namespace contextpool::cpu
