#include "contextpool/nn/local_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "contextpool/nn/positions.h"
#include "nn/sight.h"

namespace contextpool::nn {
namespace {

constexpr double kLeastWidth = 0.01;  // keys; keeps the bias finite where a sigmoid has become 0
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Places {
  torch::Tensor at;     // of the keys, [batch or 1, 1, 1, keys]
  torch::Tensor count;  // I of each query, [batch or 1, 1, queries or 1, 1]
};

Places places_of(const Sight& sight, int64_t queries, int64_t keys, const torch::TensorOptions& options) {
  const auto at =
      sight.real.defined() ? positions_of(sight.real).to(options) : torch::arange(keys, options).unsqueeze(0);
  const auto row = at.unsqueeze(1).unsqueeze(1);
  if (sight.causal) return {row, (at.slice(1, keys - queries) + 1).unsqueeze(1).unsqueeze(-1)};
  const auto count = sight.real.defined() ? sight.real.sum(1, /*keepdim=*/true).to(options).clamp_min(1)
                                          : torch::full({1, 1}, static_cast<double>(keys), options);
  return {row, count.unsqueeze(1).unsqueeze(1)};
}

}  // namespace

LocalWindowsImpl::LocalWindowsImpl(int64_t heads, int64_t head_features) {
  weight = register_parameter("weight", torch::empty({heads, head_features, head_features}));
  centre = register_parameter("centre", torch::empty({heads, head_features}));
  width = register_parameter("width", torch::empty({heads, head_features}));
  reset_parameters();
}

void LocalWindowsImpl::reset_parameters() {
  const torch::NoGradGuard no_grad;
  const auto n = static_cast<double>(weight.size(-1));
  const double bound = std::sqrt(6 / (2 * n)), vector_bound = std::sqrt(6 / (n + 1));
  weight.uniform_(-bound, bound);
  centre.uniform_(-vector_bound, vector_bound);
  width.uniform_(-vector_bound, vector_bound);
}

LocalWindowsImpl::Predicted LocalWindowsImpl::forward(const torch::Tensor& q, const torch::Tensor& keys) const {
  // Half types could not tell neighbours apart.
  const auto float_type = torch::promote_types(q.scalar_type(), torch::kFloat);
  const auto hidden = torch::matmul(q, weight.transpose(1, 2)).tanh().to(float_type);
  const auto share = [&](const torch::Tensor& u) {
    return (hidden * u.to(float_type).unsqueeze(1)).sum(-1, /*keepdim=*/true).sigmoid();
  };
  return {keys * share(centre), (keys * share(width)).clamp_min(kLeastWidth)};
}

torch::Tensor LocalWindowsImpl::attend(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                       const Sight& sight) const {
  const auto queries = q.size(2), keys = k.size(2);
  const auto float_type = torch::promote_types(q.scalar_type(), torch::kFloat);
  const auto places = places_of(sight, queries, keys, torch::TensorOptions().dtype(float_type).device(q.device()));
  const auto windows = forward(q, places.count);
  auto bias = ((places.at - windows.centre) / windows.width).square() * -2;
  const auto seen = seen_keys(sight, queries, keys, q.device());
  if (seen.defined()) bias = bias.masked_fill(seen.logical_not().unsqueeze(1), -kInfinity);
  // Weights are the same, and half types hold what is left.
  bias = bias - bias.detach().amax(-1, /*keepdim=*/true);
  return torch::scaled_dot_product_attention(q, k, v, bias.to(q.scalar_type()), sight.dropout);
}

}  // namespace contextpool::nn
