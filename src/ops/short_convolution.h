// Shared by the registrations of short_convolution: the checks, the gradient's dispatcher call, PyTorch's operators
// instead.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace contextpool {

using ShortConvolutionGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // of x, weight and bias

void check_short_convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             int64_t left);
void check_short_convolution_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                      int64_t left);

ShortConvolutionGradients short_convolution_backward(const at::Tensor& grad, const at::Tensor& x,
                                                     const at::Tensor& weight, int64_t left, bool residual);

// The same as a sum of shifted products, on any device: on CUDA for what the kernels do not have.
at::Tensor short_convolution_composite(const at::Tensor& x, const at::Tensor& weight,
                                       const std::optional<at::Tensor>& bias, int64_t left, bool residual);
ShortConvolutionGradients short_convolution_backward_composite(const at::Tensor& grad, const at::Tensor& x,
                                                               const at::Tensor& weight, int64_t left, bool residual);

}  // namespace contextpool
