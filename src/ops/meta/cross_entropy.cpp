// Shapes, dtypes and strides of cross_entropy without data: what torch.compile and torch.export trace with.
#include "ops/cross_entropy.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace contextpool {
namespace {

std::tuple<at::Tensor, at::Tensor> cross_entropy_meta(const at::Tensor& logits, const at::Tensor& target,
                                                      int64_t /*ignored*/) {
  check_cross_entropy(logits, target);
  const auto row = [&] { return at::empty_symint(target.sym_sizes(), logits.options().dtype(loss_type(logits))); };
  return {row(), row()};
}

at::Tensor cross_entropy_backward_meta(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& target,
                                       const at::Tensor& log_sum, int64_t /*ignored*/) {
  check_cross_entropy_backward(grad, logits, target, log_sum);
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Meta, m) {
  m.impl("cross_entropy", cross_entropy_meta);
  m.impl("_cross_entropy_backward", cross_entropy_backward_meta);
}

}  // namespace contextpool
