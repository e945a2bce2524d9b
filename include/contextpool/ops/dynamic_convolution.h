// A short convolution of tokens whose taps depend on the token, each channel by itself, beside a residual:
//
//   y_i = [x_i +] sum_k (w_k + U_k p_i) x_(i - left + k),   k = 0 .. K - 1
//
// where tokens outside the row do not exist. p_i is a vector of r numbers that the context of token i gives, and U_k
// spreads it over the channels: coefficients of low rank. left = K - 1 is causal, K / 2 (K odd) centred.
#pragma once

#include <ATen/core/Tensor.h>

#include "contextpool/export.h"

namespace contextpool {

// x [..., N, D] of float64, float32, bfloat16 or float16; inner (p) [..., M, r] with M <= N, up (U) [K, D, r] and
// weight (w) [D, K] of any of these types; any strides. Target m sits at token N - M + m: M == N is the ordinary case,
// M == 1 a step of decoding. y [..., M, D] is contiguous, in the type of x. Arithmetic is in float32 (float64 for
// float64), rounded once. The K D coefficients of a token are never stored, neither for the backward; the bits of y_i
// depend on p_i and the K tokens it is made of alone, not on the row, the batch or the number of threads; those of
// gradients not on the number of threads. On CUDA both hold for up to 4 taps of rank 16 and not for float64: for the
// rest PyTorch's operators serve. Differentiable once.
CONTEXTPOOL_API at::Tensor dynamic_convolution(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& up,
                                               const at::Tensor& weight, int64_t left, bool residual = false);

}  // namespace contextpool
