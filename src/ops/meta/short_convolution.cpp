// Shapes, dtypes and strides of short_convolution without data: what torch.compile and torch.export trace with.
#include "ops/short_convolution.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace contextpool {
namespace {

at::Tensor short_convolution_meta(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                  int64_t left, bool /*residual*/) {
  check_short_convolution(x, weight, bias, left);
  return at::empty_symint(x.sym_sizes(), x.options());
}

ShortConvolutionGradients short_convolution_backward_meta(const at::Tensor& grad, const at::Tensor& x,
                                                          const at::Tensor& weight, int64_t left, bool /*residual*/) {
  check_short_convolution_backward(grad, x, weight, left);
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(weight.sym_sizes(), weight.options()),
          at::empty_symint({weight.sym_size(0)}, weight.options())};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Meta, m) {
  m.impl("short_convolution", short_convolution_meta);
  m.impl("_short_convolution_backward", short_convolution_backward_meta);
}

}  // namespace contextpool
