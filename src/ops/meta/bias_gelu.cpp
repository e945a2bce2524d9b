// Shapes, dtypes and strides of bias_gelu without data: what torch.compile and torch.export trace with.
#include "ops/bias_gelu.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace contextpool {
namespace {

at::Tensor bias_gelu_meta(const at::Tensor& x, const at::Tensor& bias) {
  check_bias_gelu(x, bias);
  return at::empty_symint(x.sym_sizes(), x.options());
}

std::tuple<at::Tensor, at::Tensor> bias_gelu_backward_meta(const at::Tensor& grad, const at::Tensor& x,
                                                           const at::Tensor& bias) {
  check_bias_gelu_backward(grad, x, bias);
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(bias.sym_sizes(), bias.options())};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Meta, m) {
  m.impl("bias_gelu", bias_gelu_meta);
  m.impl("_bias_gelu_backward", bias_gelu_backward_meta);
}

}  // namespace contextpool
