// What the queries of attention see of its keys, and plain attention over that. Self-attention, cross-attention and the
// kinds of attention in files of their own share it.
#pragma once

#include <torch/torch.h>

namespace contextpool::nn {

struct Sight {
  torch::Tensor real = {};  // [batch, keys], false where a key is padding; undefined: none is
  bool causal = false;      // a query sees the keys up to its own; the queries are those of the last keys
  double dropout = 0;       // of the attention weights
};

// [batch or 1, queries or 1, keys], true where a query sees a key; undefined where every query sees every key. Every
// query sees something, since weights over nothing would be NaN on some devices: in causal attention a padded query
// sees itself, and in a row without any real key all keys are seen.
torch::Tensor seen_keys(const Sight& sight, int64_t queries, int64_t keys, const torch::Device& device);

// softmax(q k^T / sqrt(head features)) v over what is seen: q [batch, heads, queries, head features], k and v [batch,
// heads, keys, head features].
torch::Tensor full_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                             const Sight& sight);

}  // namespace contextpool::nn
