// Adaptive context pooling over a sequence: each target becomes a weighted average of the tokens around it.
//
//   y_i = sum_j p_ij x_j,   p_ij = exp(l_j - (i-j)^2 / (2 sigma_i^2)) / sum_k (same over k)
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <tuple>

#include "contextpool/export.h"

namespace contextpool {

// x [..., N, D] features, log_weight [..., N], sigma [..., M] with M <= N; returns y [..., M, D], contiguous; but where
// x [B, G, N, D] has the groups of a token side by side, as the transpose of [B, N, G, D], so has y; then none is
// copied (but on CUDA rows of half types that do not start at 16 bytes). Target m sits at position N - M + m. A source
// farther than sqrt(160) sigma does not exist, nor does one after the target when causal, nor one whose log_weight is
// -inf (whatever its features hold). sigma <= 0 leaves the token itself; a target without sources gives 0. log_weight
// and sigma are float64 for float64 x, else float32. algorithm: "auto", or "dense" (every source), "window" (the
// sources that matter), "pyramid" (linear in N). They agree within the accuracy contract of docs/accuracy.md.
CONTEXTPOOL_API at::Tensor pool1d(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                                  bool causal = false, std::string_view algorithm = "auto");

// Gradients of pool1d with respect to (x, log_weight, sigma), for grad = the gradient of y. Not differentiable again.
CONTEXTPOOL_API std::tuple<at::Tensor, at::Tensor, at::Tensor> pool1d_backward(const at::Tensor& grad,
                                                                               const at::Tensor& x,
                                                                               const at::Tensor& log_weight,
                                                                               const at::Tensor& sigma, bool causal,
                                                                               std::string_view algorithm);

}  // namespace contextpool
