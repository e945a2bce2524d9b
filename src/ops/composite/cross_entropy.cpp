// cross_entropy by PyTorch's operators.
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include "ops/cross_entropy.h"

namespace contextpool {
namespace {

// The target's column, 0 where it is ignored.
at::Tensor column(const at::Tensor& target, int64_t ignored) {
  return target.masked_fill(target.eq(ignored), 0).unsqueeze(1);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> cross_entropy_composite(const at::Tensor& logits, const at::Tensor& target,
                                                           int64_t ignored) {
  const auto values = logits.to(loss_type(logits));
  const auto log_sum = at::logsumexp(values, 1);
  const auto loss = log_sum.sub(values.gather(1, column(target, ignored)).squeeze(1));
  return {loss.masked_fill(target.eq(ignored), 0), log_sum};
}

at::Tensor cross_entropy_backward_composite(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& target,
                                            const at::Tensor& log_sum, int64_t ignored) {
  const auto at = column(target, ignored);
  auto slope = logits.to(loss_type(logits)).sub(log_sum.unsqueeze(1)).exp();
  slope.scatter_add_(1, at, at::ones_like(at, slope.options()).neg());
  // Not a product with 0: what an ignored row holds may be infinite.
  slope = slope.mul(grad.unsqueeze(1)).masked_fill(target.eq(ignored).unsqueeze(1), 0);
  return slope.to(logits.scalar_type()).contiguous();
}

}  // namespace contextpool
