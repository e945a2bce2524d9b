#include "contextpool/nn/attention.h"

#include <algorithm>

namespace contextpool::nn {
namespace {

constexpr int64_t kFirstRoom = 64;  // tokens a cache has room for at least

// Appends `fresh` [batch, heads, tokens, head features] after the first `length` rows of `room`.
void append(torch::Tensor& room, int64_t length, const torch::Tensor& fresh) {
  const auto needed = length + fresh.size(2);
  if (!room.defined() || room.size(2) < needed) {
    auto sizes = fresh.sizes().vec();
    sizes[2] = std::max({needed, 2 * length, kFirstRoom});
    auto larger = torch::empty(sizes, fresh.options());
    if (length > 0) larger.narrow(2, 0, length).copy_(room.narrow(2, 0, length));
    room = larger;
  }
  room.narrow(2, length, fresh.size(2)).copy_(fresh);
}

// [queries, keys], true where the key is not after the query; the last query stands at the last key.
torch::Tensor causal_mask(int64_t queries, int64_t keys, const torch::Device& device) {
  return torch::ones({queries, keys}, torch::TensorOptions().dtype(torch::kBool).device(device)).tril(keys - queries);
}

}  // namespace

AttentionImpl::AttentionImpl(AttentionOptions options) : options_(options) {
  TORCH_CHECK_VALUE(options_.heads > 0 && options_.features > 0 && options_.features % options_.heads == 0,
                    "Attention: features must be a multiple of heads, but are ", options_.features, " and ",
                    options_.heads);
  TORCH_CHECK_VALUE(options_.dropout >= 0 && options_.dropout < 1, "Attention: dropout must be in [0, 1), but is ",
                    options_.dropout);
  qkv_ = register_module("qkv", torch::nn::Linear(options_.features, 3 * options_.features));
  out_ = register_module("out", torch::nn::Linear(options_.features, options_.features));
}

torch::Tensor AttentionImpl::forward(const torch::Tensor& x, const Rotation& rotation, const Padding& padding) {
  const auto mask = padding.mask({x.size(0), x.size(1)});
  if (!mask.defined()) return attend(project(x, rotation), {}, options_.causal);
  // A weight of 0 times a value that is no number would be no number.
  const auto qkv = project(x.masked_fill(mask.logical_not().unsqueeze(-1), 0), rotation);
  auto seen = mask.unsqueeze(1).unsqueeze(1);
  if (options_.causal) seen = seen & causal_mask(x.size(1), x.size(1), x.device());
  return attend(qkv, seen, false);
}

torch::Tensor AttentionImpl::step(const torch::Tensor& x, AttentionCache& cache, const Rotation& rotation) {
  TORCH_CHECK(options_.causal, "Attention: only causal attention has steps");
  auto qkv = project(x, rotation);
  append(cache.keys, cache.length, qkv[1]);
  append(cache.values, cache.length, qkv[2]);
  cache.length += x.size(1);
  const bool first = cache.length == x.size(1);
  qkv[1] = cache.keys.narrow(2, 0, cache.length);
  qkv[2] = cache.values.narrow(2, 0, cache.length);
  const auto mask = first || x.size(1) == 1 ? torch::Tensor() : causal_mask(x.size(1), cache.length, x.device());
  return attend(qkv, mask, first);
}

// Queries, keys and values, each [batch, heads, tokens, head features].
std::vector<torch::Tensor> AttentionImpl::project(const torch::Tensor& x, const Rotation& rotation) {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == options_.features, "Attention: x must be [batch, tokens, ",
              options_.features, "], but is ", x.sizes());
  const auto qkv = qkv_(x).view({x.size(0), x.size(1), 3, options_.heads, options_.features / options_.heads});
  auto parts = qkv.unbind(2);
  if (rotation.defined()) {
    const auto turned = rotate(qkv.narrow(2, 0, 2), rotation);
    parts[0] = turned.select(2, 0);
    parts[1] = turned.select(2, 1);
  }
  for (auto& part : parts) part = part.transpose(1, 2);
  return parts;
}

torch::Tensor AttentionImpl::attend(const std::vector<torch::Tensor>& qkv, const torch::Tensor& mask, bool causal) {
  const auto seen = mask.defined() ? std::optional(mask) : std::nullopt;
  const auto y =
      torch::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], seen, is_training() ? options_.dropout : 0, causal);
  return out_(y.transpose(1, 2).flatten(2));
}

}  // namespace contextpool::nn
