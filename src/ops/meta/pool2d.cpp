// Shapes, dtypes and strides of pool2d without data: what torch.compile and torch.export trace with.
#include "ops/pool2d.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace contextpool {
namespace {

at::Tensor pool2d_meta(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                       at::IntArrayRef stride, std::string_view algorithm) {
  check_pool2d(x, log_weight, sigma, stride, algorithm);
  return at::empty_symint(pool2d_result_sizes(x, sigma), x.options(), x.suggest_memory_format());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool2d_backward_meta(const at::Tensor& grad, const at::Tensor& x,
                                                                    const at::Tensor& log_weight,
                                                                    const at::Tensor& sigma, at::IntArrayRef stride,
                                                                    std::string_view algorithm) {
  check_pool2d_backward(grad, x, log_weight, sigma, stride, algorithm);
  return {at::empty_symint(x.sym_sizes(), x.options(), x.suggest_memory_format()),
          at::empty_symint(log_weight.sym_sizes(), log_weight.options()),
          at::empty_symint(sigma.sym_sizes(), sigma.options())};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Meta, m) {
  m.impl("pool2d", pool2d_meta);
  m.impl("_pool2d_backward", pool2d_backward_meta);
}

}  // namespace contextpool
