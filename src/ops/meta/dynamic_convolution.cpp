// Shapes of dynamic_convolution without data: what torch.compile and torch.export trace with.
#include "ops/dynamic_convolution.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace contextpool {
namespace {

at::Tensor like(const at::Tensor& t) { return at::empty_symint(t.sym_sizes(), t.options()); }

at::Tensor dynamic_convolution_meta(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& up,
                                    const at::Tensor& weight, int64_t left, bool /*residual*/) {
  check_dynamic_convolution(x, inner, up, weight, left);
  return at::empty_symint(dynamic_convolution_sizes(x, inner), x.options());
}

DynamicConvolutionGradients dynamic_convolution_backward_meta(const at::Tensor& grad, const at::Tensor& x,
                                                              const at::Tensor& inner, const at::Tensor& up,
                                                              const at::Tensor& weight, int64_t left,
                                                              bool /*residual*/) {
  check_dynamic_convolution_backward(grad, x, inner, up, weight, left);
  return {like(x), like(inner), like(up), like(weight)};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Meta, m) {
  m.impl("dynamic_convolution", dynamic_convolution_meta);
  m.impl("_dynamic_convolution_backward", dynamic_convolution_backward_meta);
}

}  // namespace contextpool
