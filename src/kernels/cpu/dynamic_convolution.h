// dynamic_convolution on plain memory: forward and backward, all dtypes. The instruction set is chosen at run time.
#pragma once

#include <cstdint>

#include "kernels/cpu/parallel.h"
#include "kernels/type.h"

namespace contextpool::cpu {

// Channels of a token are contiguous; strides count elements. inner, up, weight and their gradients are double for f64,
// else float. The targets are the last of the tokens.
struct DynamicConvolution {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t targets = 0;
  std::int64_t channels = 0;
  std::int64_t taps = 0;
  std::int64_t rank = 0;
  std::int64_t left = 0;
  bool residual = false;
  Type type = Type::f32;
  const void* x = nullptr;  // [batch, tokens, channels]
  std::int64_t x_batch_stride = 0;
  std::int64_t x_token_stride = 0;
  const void* inner = nullptr;   // [batch, targets, rank]
  const void* up = nullptr;      // [taps, channels, rank]
  const void* weight = nullptr;  // [channels, taps]
};

struct DynamicConvolutionGradients {
  void* x = nullptr;  // contiguous, the others as above
  void* inner = nullptr;
  void* up = nullptr;
  void* weight = nullptr;
};

// y [batch, targets, channels]
void dynamic_convolution(const DynamicConvolution& in, void* y, const Parallel& parallel);

// of dy [batch, targets, channels]
void dynamic_convolution_backward(const DynamicConvolution& in, const void* dy, const DynamicConvolutionGradients& out,
                                  const Parallel& parallel);

}  // namespace contextpool::cpu
