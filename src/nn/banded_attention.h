// Causal attention with a limited reach: a query sees the `window` keys at the distances 0, stride, 2 stride, ...,
//
//   y_i = sum_t w_it v_(i - t stride) / sum_t w_it,   w_it = m(t) exp(q_i . k_(i - t stride) / sqrt(head features)),
//
// t = 0 .. window - 1, where m(t) = 1, or with a span clamp((32 + span - t) / 32, 0, 1). Time and memory are in
// proportion to queries * window: there is no array of all pairs where the window is shorter than the row.
#pragma once

#include <torch/torch.h>

namespace contextpool::nn {

constexpr int64_t kSpanRamp = 32;  // tokens over which a span fades out

struct Band {
  int64_t window = 1;
  int64_t stride = 1;
  torch::Tensor span = {};  // a number of tokens, with gradient; undefined: none
  double dropout = 0;       // of the weights
};

// q [batch, heads, queries, head features], k and v [batch, heads, keys, head features]; the queries are those of the
// last tokens among the keys'. key_mask [batch, keys]: false where only its own token sees a key;
// undefined: nowhere.
torch::Tensor banded_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                               const torch::Tensor& key_mask, const Band& band);

}  // namespace contextpool::nn
