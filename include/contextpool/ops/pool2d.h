// Adaptive context pooling over a map: each target becomes a weighted average of the pixels around it.
//
//   y_i = sum_j p_ij x_j,   p_ij = exp(l_j - d_ij^2 / (2 sigma_i^2)) / sum_k (same over k)
//
// with d_ij the distance between pixels i and j.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <tuple>

#include "contextpool/export.h"

namespace contextpool {

// x [B, C, H, W] features, log_weight [B, H, W], sigma [B, Ho, Wo] with Ho = ceil(H / stride[0]) and Wo alike; returns
// y [B, C, Ho, Wo] in the memory format of x (contiguous or channels last). Target (ho, wo) sits on pixel
// (ho * stride[0], wo * stride[1]). A source farther than sqrt(160) sigma does not exist, nor does one whose log_weight
// is -inf (whatever its features hold). sigma <= 0 leaves the pixel itself; a target without sources gives 0.
// log_weight and sigma are float64 for float64 x, else float32.
// algorithm: "auto", or "dense" (every source), "window" (the sources that matter).
// They agree within the accuracy contract of docs/accuracy.md.
CONTEXTPOOL_API at::Tensor pool2d(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                                  at::IntArrayRef stride = {1, 1}, std::string_view algorithm = "auto");

// Gradients of pool2d with respect to (x, log_weight, sigma), for grad = the gradient of y. Not differentiable again.
CONTEXTPOOL_API std::tuple<at::Tensor, at::Tensor, at::Tensor> pool2d_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
    at::IntArrayRef stride, std::string_view algorithm);

}  // namespace contextpool
