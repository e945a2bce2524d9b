// cross_entropy by PyTorch's operators.
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <limits>

#include "ops/cross_entropy.h"

namespace contextpool {
namespace {

// The target's column, 0 where it is ignored. One out of range is an error of the CPU's look-up; a CUDA device would be
// of no use to the process after it, so there another column is taken, and the row is NaN.
at::Tensor column(const at::Tensor& target, int64_t classes, int64_t ignored) {
  const auto known = target.masked_fill(target.eq(ignored), 0);
  return (target.is_cuda() ? known.clamp(0, classes - 1) : known).unsqueeze(1);
}

at::Tensor nan_if_out_of_range(const at::Tensor& rows, const at::Tensor& target, int64_t classes) {
  if (!target.is_cuda()) return rows;
  return rows.masked_fill(target.lt(0).logical_or(target.ge(classes)), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> cross_entropy_composite(const at::Tensor& logits, const at::Tensor& target,
                                                           int64_t ignored) {
  const auto values = logits.to(loss_type(logits));
  const auto log_sum = at::logsumexp(values, 1);
  const auto loss = log_sum.sub(values.gather(1, column(target, logits.size(1), ignored)).squeeze(1));
  return {nan_if_out_of_range(loss, target, logits.size(1)).masked_fill(target.eq(ignored), 0), log_sum};
}

at::Tensor cross_entropy_backward_composite(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& target,
                                            const at::Tensor& log_sum, int64_t ignored) {
  const auto at = column(target, logits.size(1), ignored);
  auto slope = logits.to(loss_type(logits)).sub(log_sum.unsqueeze(1)).exp();
  slope.scatter_add_(1, at, at::ones_like(at, slope.options()).neg());
  // Not a product with 0: what an ignored row holds may be infinite.
  const auto scale = nan_if_out_of_range(grad, target, logits.size(1)).unsqueeze(1);
  slope = slope.mul(scale).masked_fill(target.eq(ignored).unsqueeze(1), 0);
  return slope.to(logits.scalar_type()).contiguous();
}

}  // namespace contextpool
