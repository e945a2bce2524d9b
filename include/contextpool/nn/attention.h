// Multi-head self-attention: out(softmax(q k^T / sqrt(head features)) v) with q, k, v = qkv(x), on PyTorch's
// scaled_dot_product_attention. A token sees the whole row, or what its reach says:
//
//   window         itself and the window - 1 tokens before it. The last dilated_heads heads see as many, but every
//                  (dilation + 1)-th: distances 0, dilation + 1, 2 (dilation + 1), ...
//   adaptive_span  each head has a span z in [0, 1], the parameter `span` [heads]. A weight at distance d is multiplied
//                  by clamp((32 + z span_limit - d) / 32, 0, 1), 0 from d = span_limit on, and the weights sum to 1
//                  again. A span outside [0, 1] counts as the nearer end, and has no gradient.
//   local          the whole row, with a Gaussian around a predicted centre on the scores: local_attention.h
//   area           the whole row, and every area of up to area_width consecutive tokens of it: area_attention.h
//
// Windows and spans take time and memory in proportion to tokens * reach. Distances count positions, padded ones too.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>

#include "contextpool/nn/context_pool.h"
#include "contextpool/nn/linear.h"
#include "contextpool/nn/local_attention.h"
#include "contextpool/nn/positions.h"

namespace contextpool::nn {

struct Reach {
  std::string kind = "full";  // full, window, adaptive_span, local or area; window and adaptive_span are causal
  int64_t window = 512;
  int64_t dilation = 0;
  int64_t dilated_heads = 0;
  // Windows are twice as long for the tokens from position `row` on, four times from 2 row on, and so on, as often as
  // `window_doublings` says. It is the position that counts, since a causal token cannot know how long its row will be.
  int64_t row = 2048;
  int64_t window_doublings = 0;
  int64_t span_limit = 8192;
  int64_t area_width = 5;  // tokens of the widest area
};

struct AttentionOptions {
  int64_t features = 512;
  int64_t heads = 8;
  double dropout = 0;   // of the attention weights
  bool causal = false;  // a token sees itself and those before it
  Reach reach = {};
};

// Keys and values of the tokens seen so far, [batch, tokens, heads, head features]; of areas those that end at each
// token, [batch, tokens, width, heads, head features].
class AttentionCache : public TokenCache {};

class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(AttentionOptions options);

  // What becomes of the joined projections [batch, tokens, 3 features], before they are turned; empty: nothing.
  using MixProjections = std::function<torch::Tensor(const torch::Tensor& qkv)>;

  // x [batch, tokens, features]. No token sees padded tokens, whatever they contain.
  torch::Tensor forward(const torch::Tensor& x, const Rotation& rotation = {}, const Padding& padding = {},
                        const MixProjections& mix = {});

  // The next tokens of a causal row: x [batch, new tokens, features], after those in the cache, which they join.
  // Equals the last rows of forward over all of them. rotation and padding are those of the new tokens; the cache
  // remembers the padding.
  torch::Tensor step(const torch::Tensor& x, AttentionCache& cache, const Rotation& rotation = {},
                     const Padding& padding = {}, const MixProjections& mix = {});

  const AttentionOptions& options() const { return options_; }

  torch::Tensor span;  // [heads], 0 at first; undefined unless the reach is adaptive_span

 private:
  struct Parts {
    torch::Tensor q, k, v;    // each [batch, heads, tokens, head features]; k and v of areas as in the cache
    torch::Tensor real = {};  // [batch, keys], false where a key is padding; undefined: none is
  };
  Parts project(const torch::Tensor& x, const Rotation& rotation, const MixProjections& mix);
  void append_areas(Parts& parts, AttentionCache& cache) const;
  // The queries are those of the last tokens among the keys'.
  torch::Tensor attend(const Parts& parts);
  torch::Tensor see_windows(const Parts& parts);
  torch::Tensor see_spans(const Parts& parts);
  double dropout_now() const { return is_training() ? options_.dropout : 0; }

  AttentionOptions options_;
  Linear qkv_{nullptr}, out_{nullptr};
  LocalWindows local_{nullptr};  // of local attention
};
TORCH_MODULE(Attention);

}  // namespace contextpool::nn
