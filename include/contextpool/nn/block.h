// A pre-norm transformer block with places for local mixers (nn/mixer.h). With Attn the attention, FF the feed-forward,
// and A, B, O, C, D, E the mixers of those places, or nothing:
//
//   h = A(LN x),   x <- x + O(Attn(h)),   Attn(h) = out(softmax(q k^T) v), q, k, v = B(qkv(h))
//   g = C(LN x),   x <- E(x + FF(g)),     FF(g) = down(act(D(up(g))))
//
// each branch followed by dropout, act the exact GELU or ReLU. The context of B and O is h, that of D is g; A, C and E
// have their own input. Three single places have names, for `placement`: before_attention = A, after_attention
// = O, after_block = E.
//
// Parameters. A block with a single mixer has it under its kind: context_pool.*, depthwise.*, canon.*, dynamic.*. A
// block with several has each under its place: mixers.A.*, mixers.C.*.
#pragma once

#include <torch/torch.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "contextpool/nn/attention.h"
#include "contextpool/nn/context_pool.h"
#include "contextpool/nn/depthwise.h"
#include "contextpool/nn/linear.h"
#include "contextpool/nn/mixer.h"
#include "contextpool/nn/positions.h"

namespace contextpool::nn {

// The places of a block, in the order in which a token passes them.
inline constexpr std::string_view kPlaces = "ABOCDE";

// Which mixers stand where, and the numbers that they share.
struct MixOptions {
  std::string places = {};        // "A=canon,C=canon,O=context_pool"; empty: what mixer and placement say
  int64_t taps = 4;               // of canon and dynamic
  std::string residual = "none";  // of depthwise and context_pool: none, plain, scale or gated
  int64_t rank = 15;              // of what depends on the context: in dynamic, and in gated
  int64_t heads = 0;              // of dynamic; 0: low rank
  int64_t pool_taps = 0;          // of a short convolution beside context_pool; 0: none
};

struct TransformerBlockOptions {
  int64_t features = 512;
  int64_t heads = 8;
  int64_t feedforward = 2048;
  double dropout = 0;  // of each branch, and of the attention weights unless attention_dropout says otherwise
  bool causal = false;
  Reach reach = {};                           // of the attention
  std::string mixer = "none";                 // one of mixer_kinds(), in one place:
  std::string placement = "after_attention";  // after_attention, after_block or before_attention
  int64_t taps = 15;                          // of depthwise
  MixOptions mix = {};
  ContextPoolOptions pool = {};                  // features and causal are set by the block
  std::optional<double> attention_dropout = {};  // of the attention weights, where it is not `dropout`
  double activation_dropout = 0;                 // inside the feed-forward branch
  std::string activation = "gelu";               // gelu or relu
};

// The mixers of a block by place, none where there is none: what `mix.places` says, or else `mixer` at `placement`.
std::map<char, MixerOptions> mixers_of(const TransformerBlockOptions& options);

// What a block remembers of the tokens seen so far: the caches of its parts, which it crops and chooses rows of
// together.
struct BlockCache {
  AttentionCache attention;
  std::array<MixerCache, kPlaces.size()> mixers;

  int64_t length() const { return attention.length(); }
  std::optional<int64_t> rows() const { return attention.rows(); }
  void crop(int64_t length);
  void select(const torch::Tensor& rows);
  void reorder(const torch::Tensor& rows) { select(rows); }
  void repeat(int64_t times);
};

// The residual stream between two blocks: x, and a branch that has yet to be added (undefined: none), so that the next
// norm can be computed in the same pass.
struct Stream {
  torch::Tensor x, branch;

  torch::Tensor sum() const { return branch.defined() ? x + branch : x; }
};

class TransformerBlockImpl : public torch::nn::Module {
 public:
  explicit TransformerBlockImpl(TransformerBlockOptions options);

  // x [batch, tokens, features]. What padded tokens hold reaches neither the others nor any gradient.
  torch::Tensor forward(const torch::Tensor& x, const Rotation& rotation = {}, const Padding& padding = {});
  // The same for a stream whose last branch is open: sum() of the result is forward of the sum of `in`.
  Stream pass(const Stream& in, const Rotation& rotation = {}, const Padding& padding = {});
  // As forward, and what context_pool() predicted; its tensors are undefined where there is none.
  std::pair<torch::Tensor, Windows> forward_with_windows(const torch::Tensor& x, const Rotation& rotation = {},
                                                         const Padding& padding = {});

  // The next tokens of causal rows, which then are in the cache too: equals the last rows of forward over all of them.
  // rotation and padding are those of the new tokens; the cache remembers the padding.
  torch::Tensor step(const torch::Tensor& x, BlockCache& cache, const Rotation& rotation = {},
                     const Padding& padding = {});

  // After a model has drawn all parameters by its own rule: each mixer's finish_initialisation.
  void finish_initialisation();

  const TransformerBlockOptions& options() const { return options_; }
  Attention attention() const { return attention_; }
  // The mixer of a place; null where there is none.
  Mixer mixer(char place) const;
  // The first ContextPool of the block, by place; null where there is none.
  ContextPool1d context_pool() const;

 protected:
  // What happens to x between the two branches; empty: nothing. For blocks with a branch more.
  using Between = std::function<torch::Tensor(const torch::Tensor& x)>;
  torch::Tensor forward_with(const torch::Tensor& x, const Rotation& rotation, const Padding& padding,
                             const Between& between);
  torch::Tensor step_with(const torch::Tensor& x, BlockCache& cache, const Rotation& rotation, const Padding& padding,
                          const Between& between);
  torch::Tensor drop(const torch::Tensor& x) { return dropout_(x); }

 private:
  // Mixes a value at a place, given the context.
  using Mix = std::function<torch::Tensor(std::size_t place, const torch::Tensor& x, const torch::Tensor& context)>;
  using Attend = std::function<torch::Tensor(const torch::Tensor& x, const AttentionImpl::MixProjections& mix)>;

  torch::Tensor real_tokens(const torch::Tensor& x, const Padding& padding) const;
  Stream run(const Stream& in, const Attend& attend, const Mix& mix, const Between& between = {});
  torch::Tensor activated(const torch::Tensor& g, const Mix& mix);

  TransformerBlockOptions options_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  Attention attention_{nullptr};
  std::array<std::shared_ptr<MixerImpl>, kPlaces.size()> mixers_;
  torch::nn::Dropout dropout_{nullptr};
  Linear up_{nullptr}, down_{nullptr};  // feedforward.{up,down}
};
TORCH_MODULE(TransformerBlock);

}  // namespace contextpool::nn
