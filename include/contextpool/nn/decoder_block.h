// A transformer block of a decoder: nn/block.h's with a third branch between its two, attention over another row, which
// has a place of its own for a mixer, X:
//
//   h = A(LN x),    x <- x + O(Attn(h))
//   c = LN x,       x <- x + X(CrossAttn(c, memory))
//   g = C(LN x),    x <- E(x + FF(g))
//
// The context of X is c. Parameters: those of the block, cross_norm, cross_attention.{q,kv,out} and cross_mixer.*.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>

#include "contextpool/nn/block.h"
#include "contextpool/nn/cross_attention.h"

namespace contextpool::nn {

struct DecoderBlockOptions {
  TransformerBlockOptions block;            // causal, features, heads and dropouts are for all branches
  std::string cross_attention = "full";     // full, local or area
  std::string cross_mixer = "none";         // one of mixer_kinds(), with the numbers of block.mix and block.pool
  std::optional<int64_t> cross_layer = {};  // of random_sparse in that mixer, where it is not block.pool.layer
};

// What a block remembers of the tokens seen so far, and the memory that it attends to.
struct DecoderBlockCache {
  BlockCache block;
  MixerCache cross_mixer;
  CrossMemory memory;

  int64_t length() const { return block.length(); }
  void crop(int64_t length);
  void select(const torch::Tensor& rows);
  // Rows move among those that share a row of the memory, and all of these stay or go: what beam search does. Rows as
  // for select; sentences: the memory's own rows that stay, undefined where all do. Cheaper than select, since the
  // memory stays where it is.
  void reorder(const torch::Tensor& rows, const torch::Tensor& sentences = {});
  void repeat(int64_t times);
};

class DecoderBlockImpl : public TransformerBlockImpl {
 public:
  explicit DecoderBlockImpl(DecoderBlockOptions options);

  // Keys and values of the row to attend to, [batch, tokens, features].
  CrossMemory remember(const torch::Tensor& memory, const Padding& padding = {});

  // x [batch, tokens, features], a row for each of the memory's. What padded tokens hold reaches neither the others nor
  // any gradient.
  torch::Tensor forward(const torch::Tensor& x, const CrossMemory& memory, const Rotation& rotation = {},
                        const Padding& padding = {});

  // The next tokens of causal rows, which then are in the cache too: equals the last rows of forward over all of them.
  // The cache's memory is what remember gave.
  torch::Tensor step(const torch::Tensor& x, DecoderBlockCache& cache, const Rotation& rotation = {},
                     const Padding& padding = {});

  void finish_initialisation();

  CrossAttention cross_attention() const { return cross_attention_; }
  // Null where there is none.
  Mixer cross_mixer() const { return cross_mixer_; }

 private:
  torch::nn::LayerNorm cross_norm_{nullptr};
  CrossAttention cross_attention_{nullptr};
  Mixer cross_mixer_{nullptr};
};
TORCH_MODULE(DecoderBlock);

}  // namespace contextpool::nn
