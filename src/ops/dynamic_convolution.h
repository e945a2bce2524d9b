// Shared by the registrations of dynamic_convolution: the checks, the gradient's dispatcher call.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

namespace contextpool {

using DynamicConvolutionGradients =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;  // of x, inner, up and weight

void check_dynamic_convolution(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& up,
                               const at::Tensor& weight, int64_t left);
void check_dynamic_convolution_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& inner,
                                        const at::Tensor& up, const at::Tensor& weight, int64_t left);

// [..., targets, channels]
inline std::vector<c10::SymInt> dynamic_convolution_sizes(const at::Tensor& x, const at::Tensor& inner) {
  auto sizes = x.sym_sizes().vec();
  sizes[sizes.size() - 2] = inner.sym_size(-2);
  return sizes;
}

DynamicConvolutionGradients dynamic_convolution_backward(const at::Tensor& grad, const at::Tensor& x,
                                                         const at::Tensor& inner, const at::Tensor& up,
                                                         const at::Tensor& weight, int64_t left, bool residual);

// By PyTorch's operators, for where no kernel of ours goes. Inputs are checked.
at::Tensor dynamic_convolution_composite(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& up,
                                         const at::Tensor& weight, int64_t left, bool residual);
DynamicConvolutionGradients dynamic_convolution_backward_composite(const at::Tensor& grad, const at::Tensor& x,
                                                                   const at::Tensor& inner, const at::Tensor& up,
                                                                   const at::Tensor& weight, int64_t left,
                                                                   bool residual);

}  // namespace contextpool
