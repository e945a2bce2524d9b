// The ContextPool module: predicts how much each token counts and how far each target looks, then pools.
//
//   (a, b) = m(X),   l_j = a_j,   sigma_i = r n s(b_i),   y_i = sum_j p_ij x_j,
//   p_ij = exp(l_j) g_ij / sum_k exp(l_k) g_ik,   g_ij = exp(-(i-j)^2 / (2 sigma_i^2))
//
// with s(b) in [0, 1] and n the length of the row, on maps (height + width) / 2. Every other form of weights and of g
// that the paper compares with is an option (context_pool_options.h). docs/module.md shows how to put the module into a
// model.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "contextpool/nn/cache.h"
#include "contextpool/nn/context_pool_options.h"
#include "contextpool/nn/linear.h"
#include "contextpool/nn/padding.h"

namespace contextpool::nn {

// Throws c10::ValueError, with the reason, for options that cannot be built. The modules call it themselves.
void validate(const ContextPoolOptions& options);
void validate(const ContextPool2dOptions& options);

// What was predicted, for looking at; with G > 1 groups both have G as their second dimension. At padded tokens
// log_weight is -inf and sigma 0.
struct Windows {
  // [B, N] or [B, H, W]: the log weight l of each token. Where weights is "unnormalized", the weight itself (it has a
  // sign); "uniform", 0; "nonlocal", undefined, since there is a weight for each pair of tokens.
  torch::Tensor log_weight;
  // [B, N] or [B, Ho, Wo]: sigma of each target, or R of adaptive_window. Undefined where the locality has no sizes.
  torch::Tensor sigma;
};

// What ContextPool1d::step remembers of the tokens seen so far: features, weights, and keys of "nonlocal".
using ContextPoolCache = MixerCache;

class PredictorImpl;

class ContextPool1dImpl : public torch::nn::Cloneable<ContextPool1dImpl> {
 public:
  explicit ContextPool1dImpl(ContextPoolOptions options);
  explicit ContextPool1dImpl(int64_t features) : ContextPool1dImpl(ContextPoolOptions{.features = features}) {}

  // x [B, N, D] -> y [B, N, D], in the dtype of x.
  torch::Tensor forward(const torch::Tensor& x, const Padding& padding = {});
  // The same, and what was predicted.
  std::pair<torch::Tensor, Windows> forward_with_windows(const torch::Tensor& x, const Padding& padding = {});

  // The outputs [B, T, D] of T >= 1 new tokens x [B, T, D] that follow those in the cache (a new cache: none), which
  // then holds them too: what forward gives for these positions of the whole row. Causal only. padding is that of the
  // new tokens, [B, T]; the cache remembers it, so a left-padded batch needs it for the prompt only. The cache is part
  // of the graph where gradients are recorded: decode under torch::NoGradGuard.
  torch::Tensor step(const torch::Tensor& x, ContextPoolCache& cache, const Padding& padding = {});

  // Draws every parameter anew by torch's own rule, then sets the sizes.
  void reset_parameters();
  // Makes initial_sigma hold, whatever comes in: in the predictor's last layer the size channel gets weight 0 and the
  // bias that gives it (the weight channel too gets weight and bias 0 where size_norm is "channels"). For a model that
  // initialises all of its parameters itself. Sizes by "softmax" sum to 1 over a row, so no bias can set them: they
  // start at sigma = r n / N.
  void reset_sizes();

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  const ContextPoolOptions& options() const { return options_; }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Padding())})

 private:
  torch::Tensor run(const torch::Tensor& x, const Padding& padding, Windows* windows);

  ContextPoolOptions options_;
  std::shared_ptr<PredictorImpl> predictor_;  // predictor.{conv1,conv2,fc1,fc2}.{weight,bias}
  Linear theta_{nullptr}, phi_{nullptr};      // theta.weight, phi.weight of "nonlocal"
};
TORCH_MODULE(ContextPool1d);

class ContextPool2dImpl : public torch::nn::Cloneable<ContextPool2dImpl> {
 public:
  explicit ContextPool2dImpl(ContextPool2dOptions options);

  // x [B, C, H, W] -> y [B, C, Ho, Wo] with Ho = ceil(H / stride[0]), in the dtype of x.
  torch::Tensor forward(const torch::Tensor& x, const Padding& padding = {});
  std::pair<torch::Tensor, Windows> forward_with_windows(const torch::Tensor& x, const Padding& padding = {});

  void reset_parameters();  // as for ContextPool1d
  void reset_sizes();
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  const ContextPool2dOptions& options() const { return options_; }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Padding())})

 private:
  torch::Tensor run(const torch::Tensor& x, const Padding& padding, Windows* windows);

  ContextPool2dOptions options_;
  std::shared_ptr<PredictorImpl> predictor_;
  Linear theta_{nullptr}, phi_{nullptr};
};
TORCH_MODULE(ContextPool2d);

}  // namespace contextpool::nn
