// Multi-head self-attention: out(softmax(q k^T / sqrt(head features)) v) with q, k, v = qkv(x), on PyTorch's
// scaled_dot_product_attention.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "contextpool/nn/context_pool.h"
#include "contextpool/nn/positions.h"

namespace contextpool::nn {

struct AttentionOptions {
  int64_t features = 512;
  int64_t heads = 8;
  double dropout = 0;   // of the attention weights
  bool causal = false;  // a token sees itself and those before it
};

// Keys and values of the tokens seen so far, [batch, heads, capacity, head features]; room grows by doubling.
struct AttentionCache {
  torch::Tensor keys, values;
  int64_t length = 0;
};

class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(AttentionOptions options);

  // x [batch, tokens, features]. Padded tokens are seen by no one, whatever they hold.
  torch::Tensor forward(const torch::Tensor& x, const Rotation& rotation = {}, const Padding& padding = {});

  // The next tokens of a causal row: x [batch, new tokens, features], after those in the cache, which they join.
  // Equals the last rows of forward over all of them. rotation is that of the new tokens.
  torch::Tensor step(const torch::Tensor& x, AttentionCache& cache, const Rotation& rotation = {});

  const AttentionOptions& options() const { return options_; }

 private:
  std::vector<torch::Tensor> project(const torch::Tensor& x, const Rotation& rotation);
  torch::Tensor attend(const std::vector<torch::Tensor>& qkv, const torch::Tensor& mask, bool causal);

  AttentionOptions options_;
  torch::nn::Linear qkv_{nullptr}, out_{nullptr};
};
TORCH_MODULE(Attention);

}  // namespace contextpool::nn
