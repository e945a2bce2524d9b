// m(X): the two small layers that say how much each token counts and how far it looks.
//
//   channels = layer2(gelu(layer1(x))),   exact gelu; both layers convolutions ("conv") or per token ("mlp")
//
// With R = size_range the size channel is bias + R tanh((channel - bias) / R): the learnt size, and a bounded part that
// depends on the token.
// Padded tokens are 0 before each layer, as what lies beyond the ends is.
#pragma once

#include <torch/torch.h>

#include <utility>

#include "contextpool/nn/context_pool.h"

namespace contextpool::nn {

class PredictorImpl : public torch::nn::Cloneable<PredictorImpl> {
 public:
  // dims: 1 for rows, 2 for maps.
  PredictorImpl(ContextPoolOptions options, int64_t dims);

  // x [B, N, D] -> [B, N, channels], or x [B, C, H, W] -> [B, channels, H, W], in float32 (float64 for such x). The
  // weights of the groups come first, then their sizes. padded: true where a token is padding, or undefined; x is 0
  // there. The second layer is computed in float32 under autocast too.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& padded);

  // On CUDA, for the operator's Gaussian windows, where nothing is padded and each size depends on its own token alone:
  // log weights and sizes of rows x [B, N, D], [B, groups, N] each (no groups where they are not predicted), in a few
  // passes over memory. What forward gives, up to rounding.
  bool has_windows(const torch::Tensor& x, const torch::Tensor& padded) const;
  std::pair<torch::Tensor, torch::Tensor> windows(const torch::Tensor& x);

  // How many tokens before its own a causal channel depends on.
  int64_t reach() const;

  void reset_parameters();
  void reset_sizes();
  void reset() override;

 private:
  torch::Tensor layer(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) const;

  // The channels with the sizes' part that depends on the token within size_range. bias: of the second layer.
  torch::Tensor bounded(const torch::Tensor& channels, const torch::Tensor& bias) const;

  ContextPoolOptions options_;
  int64_t dims_;
  std::shared_ptr<torch::nn::Module> first_, second_;
};
TORCH_MODULE(Predictor);

}  // namespace contextpool::nn
