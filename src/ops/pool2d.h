// Shared by the registrations of pool2d: the checks and the result's sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace contextpool {

// What include/contextpool/ops/pool2d.h asks of the inputs; throws with the operator, what was expected and what came.
void check_pool2d(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, at::IntArrayRef stride,
                  std::string_view algorithm);
void check_pool2d_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& log_weight,
                           const at::Tensor& sigma, at::IntArrayRef stride, std::string_view algorithm);

// Sizes of the result: x's with H, W replaced by those of sigma.
c10::SymDimVector pool2d_result_sizes(const at::Tensor& x, const at::Tensor& sigma);

}  // namespace contextpool
