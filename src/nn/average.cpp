#include "nn/average.h"

#include <limits>

namespace contextpool::nn {

torch::Tensor shares(const torch::Tensor& scores, const torch::Tensor& factors) {
  constexpr double none = -std::numeric_limits<double>::infinity();
  if (scores.numel() == 0) return scores;
  // The largest is taken over what exists only: what is beyond a window, or in the future, has no say.
  const auto existing = factors.defined() ? scores.masked_fill(factors == 0, none) : scores;
  const auto top = existing.detach().amax(-1, /*keepdim=*/true);
  auto parts = (existing - top.masked_fill(top == none, 0)).exp();
  if (factors.defined()) parts = parts * factors;
  const auto total = parts.sum(-1, /*keepdim=*/true);
  return parts / total.masked_fill(total == 0, 1);
}

torch::Tensor average(const torch::Tensor& x, const torch::Tensor& scores, const torch::Tensor& factors) {
  return torch::matmul(shares(scores, factors).to(x.scalar_type()), x);
}

}  // namespace contextpool::nn
