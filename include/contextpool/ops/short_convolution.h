// A short convolution of tokens, each channel by itself, beside a residual:
//
//   y_i = [x_i +] b + sum_k w_k x_(i - left + k),   k = 0 .. K - 1
//
// where tokens outside the row do not exist. left = K - 1 is causal, K / 2 (K odd) centred.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "contextpool/export.h"

namespace contextpool {

// x [..., N, D] of float64, float32, bfloat16 or float16, any strides; weight [D, K] of any of these types, bias [D] of
// the weight's; y is contiguous, in the type of x. Arithmetic is in float32 (float64 for float64), rounded once. The
// bits of y_i depend on the K tokens it is made of alone, not on the row, the batch or the number of threads; those of
// gradients not on the number of threads. On CUDA there are kernels for up to 32 taps and all types but float64;
// anything else is a sum of shifted products there, many times slower. Differentiable once.
CONTEXTPOOL_API at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight,
                                             const std::optional<at::Tensor>& bias, int64_t left,
                                             bool residual = false);

}  // namespace contextpool
