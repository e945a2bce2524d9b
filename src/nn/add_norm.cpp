#include "nn/add_norm.h"

#include <ATen/autocast_mode.h>

#include "contextpool/ops/add_layer_norm.h"

namespace contextpool::nn {

namespace {

// Of the norms of x; none: x's own.
std::optional<torch::ScalarType> type_under_autocast(const torch::Tensor& x) {
  const bool casts =
      x.is_cuda() && x.scalar_type() != torch::kDouble && at::autocast::is_autocast_enabled(torch::kCUDA);
  return casts ? std::optional(at::autocast::get_autocast_dtype(torch::kCUDA)) : std::nullopt;
}

}  // namespace

SumAndNorm add_norm(const torch::Tensor& x, const torch::Tensor& branch, torch::nn::LayerNorm& norm) {
  if (!x.is_cuda() || branch.sizes() != x.sizes()) return only_norm(x + branch, norm);
  auto [sum, normed] = add_layer_norm(x, branch, norm->weight, norm->bias, norm->options.eps(), type_under_autocast(x));
  return {sum, normed};
}

SumAndNorm only_norm(const torch::Tensor& x, torch::nn::LayerNorm& norm) {
  const auto normed = norm(x);
  const auto type = type_under_autocast(x);
  return {x, type ? normed.to(*type) : normed};
}

}  // namespace contextpool::nn
