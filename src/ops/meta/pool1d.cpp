// Shapes, dtypes and strides of pool1d without data: what torch.compile and torch.export trace with.
#include "ops/pool1d.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace contextpool {
namespace {

at::Tensor pool1d_meta(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, bool /*causal*/,
                       std::string_view algorithm) {
  check_pool1d(x, log_weight, sigma, algorithm);
  return empty_result(x, pool1d_result_sizes(x, sigma));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool1d_backward_meta(const at::Tensor& grad, const at::Tensor& x,
                                                                    const at::Tensor& log_weight,
                                                                    const at::Tensor& sigma, bool /*causal*/,
                                                                    std::string_view algorithm,
                                                                    const std::optional<at::Tensor>& /*kept*/) {
  check_pool1d_backward(grad, x, log_weight, sigma, algorithm);
  return {empty_result(x, x.sym_sizes()), at::empty_symint(log_weight.sym_sizes(), log_weight.options()),
          at::empty_symint(sigma.sym_sizes(), sigma.options())};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Meta, m) {
  m.impl("pool1d", pool1d_meta);
  m.impl("_pool1d_backward", pool1d_backward_meta);
}

}  // namespace contextpool
