// What every operator asks of its tensors before any arithmetic. Sizes are symbolic so that the same checks serve
// the Meta registration under torch.compile and torch.export.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace contextpool {

// None of them may be missing (None in Python). The other checks assume this; so does differentiation.
void check_defined(std::string_view op, const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma);

// Floating dtype of x, the float32/float64 rule for log_weight and sigma, one device.
void check_types(std::string_view op, const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma);

// The gradient handed to a backward must look like the result of the forward.
void check_grad(std::string_view op, const at::Tensor& grad, const at::Tensor& x, c10::SymIntArrayRef result_sizes);

}  // namespace contextpool
