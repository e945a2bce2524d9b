// Shared by the registrations of bias_gelu: the checks, the gradient's dispatcher call, PyTorch's operators instead.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace contextpool {

void check_bias_gelu(const at::Tensor& x, const at::Tensor& bias);
void check_bias_gelu_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& bias);

// dx and dbias.
std::tuple<at::Tensor, at::Tensor> bias_gelu_backward(const at::Tensor& grad, const at::Tensor& x,
                                                      const at::Tensor& bias);

// The same by PyTorch's operators: on the CPU, and on CUDA where the kernels do not go.
at::Tensor bias_gelu_composite(const at::Tensor& x, const at::Tensor& bias);
std::tuple<at::Tensor, at::Tensor> bias_gelu_backward_composite(const at::Tensor& grad, const at::Tensor& x,
                                                                const at::Tensor& bias);

}  // namespace contextpool
