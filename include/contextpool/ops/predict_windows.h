// What follows the first matrix product of ContextPool's predictor on rows, in one pass over that product: its shifted
// sums, bias and GELU, the second layer, and the map from its channels to sizes,
//
//   h_j = gelu(bias + sum_k product[j - left + k, k H .. (k + 1) H))            0 <= k < taps; tokens outside count 0
//   u_i = sum_k weight[:, :, k] h_(i - left + k),   C channels
//   log_weight = u + out_bias,   of the first C - S channels
//   sigma = least + span sigmoid(shift + out_bias + R tanh(u / R)),   of the last S channels
//
// With R = 0, u stands for R tanh(u / R). Arithmetic is in float32 (float64 for float64), under autocast too. On CUDA
// there are kernels for up to 4 taps, 32 channels and 64 hidden features, a multiple of 8, of any type but float64:
// with them gradients are sums in a fixed order, and no bit of a token's results depends on tokens that it is not made
// of. Elsewhere it is PyTorch's operators one after the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "contextpool/export.h"

namespace contextpool {

// How channels become sizes, as above; R is size_range.
struct SizeMap {
  double size_range = 0, shift = 0, least = 0, span = 1;
};

// product [B, N, taps H] of float64, float32, bfloat16 or float16; bias [H], weight [C, H, taps] and out_bias [C], of
// any of them; 0 <= left < taps, 0 <= sizes <= C. log_weight [B, C - sizes, N] and sigma [B, sizes, N] are float32,
// float64 for float64. Differentiable once.
CONTEXTPOOL_API std::tuple<at::Tensor, at::Tensor> predict_windows(const at::Tensor& product, const at::Tensor& bias,
                                                                   const at::Tensor& weight, const at::Tensor& out_bias,
                                                                   int64_t left, int64_t sizes, const SizeMap& map);

}  // namespace contextpool
