// A pre-norm transformer block with a place for ContextPool, or for the depthwise control. With Attn the attention on
// LayerNorm(x), Mix the mixer and FF(x) = down(gelu(up(x))), each branch followed by dropout:
//
//   mixer none         x <- x + Attn(LN x);       x <- x + FF(LN x)
//   after_attention    x <- x + Mix(Attn(LN x));  x <- x + FF(LN x)
//   after_block        x <- x + Attn(LN x);       x <- Mix(x + FF(LN x))
//   before_attention   x <- x + Attn(Mix(LN x));  x <- x + FF(LN x)
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>

#include "contextpool/nn/attention.h"
#include "contextpool/nn/context_pool.h"
#include "contextpool/nn/depthwise.h"
#include "contextpool/nn/positions.h"

namespace contextpool::nn {

struct TransformerBlockOptions {
  int64_t features = 512;
  int64_t heads = 8;
  int64_t feedforward = 2048;
  double dropout = 0;  // of the attention weights and of each branch
  bool causal = false;
  Reach reach = {};                           // of the attention
  std::string mixer = "none";                 // none, context_pool or depthwise
  std::string placement = "after_attention";  // after_attention, after_block or before_attention
  int64_t taps = 15;                          // of the depthwise control
  ContextPoolOptions pool;                    // features and causal are set by the block
};

// What a block remembers of the tokens seen so far: the caches of its parts, which it crops and chooses rows of
// together.
struct BlockCache {
  AttentionCache attention;
  ContextPoolCache pool;
  DepthwiseCache depthwise;

  int64_t length() const { return attention.length(); }
  std::optional<int64_t> rows() const { return attention.rows(); }
  void crop(int64_t length);
  void select(const torch::Tensor& rows);
  void reorder(const torch::Tensor& rows) { select(rows); }
  void repeat(int64_t times);
};

class TransformerBlockImpl : public torch::nn::Module {
 public:
  explicit TransformerBlockImpl(TransformerBlockOptions options);

  // x [batch, tokens, features]. What padded tokens hold reaches neither the others nor any gradient.
  torch::Tensor forward(const torch::Tensor& x, const Rotation& rotation = {}, const Padding& padding = {});
  // The same, and what the ContextPool predicted; its tensors are undefined where there is none.
  std::pair<torch::Tensor, Windows> forward_with_windows(const torch::Tensor& x, const Rotation& rotation = {},
                                                         const Padding& padding = {});

  // The next tokens of causal rows, which then are in the cache too: equals the last rows of forward over all of them.
  // rotation and padding are those of the new tokens; the cache remembers the padding.
  torch::Tensor step(const torch::Tensor& x, BlockCache& cache, const Rotation& rotation = {},
                     const Padding& padding = {});

  const TransformerBlockOptions& options() const { return options_; }
  Attention attention() const { return attention_; }
  // The ContextPool of the block; null unless that is the mixer.
  ContextPool1d context_pool() const { return context_pool_; }

 private:
  torch::Tensor real_tokens(const torch::Tensor& x, const Padding& padding) const;
  template <typename Attend, typename Mix>
  torch::Tensor run(const torch::Tensor& x, Attend attend, Mix mix);

  TransformerBlockOptions options_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  Attention attention_{nullptr};
  ContextPool1d context_pool_{nullptr};
  Depthwise depthwise_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::Linear up_{nullptr}, down_{nullptr};  // feedforward.{up,down}
};
TORCH_MODULE(TransformerBlock);

}  // namespace contextpool::nn
