#include "nn/sight.h"

namespace contextpool::nn {

torch::Tensor seen_keys(const Sight& sight, int64_t queries, int64_t keys, const torch::Device& device) {
  const bool cut = sight.causal && (queries > 1 || sight.real.defined());
  torch::Tensor past;
  if (cut) {
    past = torch::ones({queries, keys}, torch::TensorOptions().dtype(torch::kBool).device(device)).tril(keys - queries);
  }
  if (!sight.real.defined()) return cut ? past.unsqueeze(0) : past;
  const auto real = sight.real.unsqueeze(1);
  if (cut) return (real & past) | past.triu(keys - queries);
  return real | real.any(-1, /*keepdim=*/true).logical_not();
}

torch::Tensor full_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                             const Sight& sight) {
  const auto queries = q.size(2), keys = k.size(2);
  const bool whole = queries == keys && !sight.real.defined();  // for which PyTorch knows causality by itself
  const auto seen = sight.causal && whole ? torch::Tensor() : seen_keys(sight, queries, keys, q.device());
  return torch::scaled_dot_product_attention(q, k, v, seen.defined() ? std::optional(seen.unsqueeze(1)) : std::nullopt,
                                             sight.dropout, sight.causal && whole);
}

}  // namespace contextpool::nn
