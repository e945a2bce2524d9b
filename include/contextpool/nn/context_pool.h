// The ContextPool module: predicts how much each token counts and how far each target looks, then pools.
//
//   (a, b) = m(X),   l_j = a_j,   sigma_i = r n s(b_i),   y_i = sum_j p_ij x_j,
//   p_ij = exp(l_j) g_ij / sum_k exp(l_k) g_ik,   g_ij = exp(-(i-j)^2 / (2 sigma_i^2))
//
// with s(b) in [0, 1] and n the length of the row. Every other form of weights and of g that the paper compares with
// is an option. docs/module.md shows how to put the module into a model.
#pragma once

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "contextpool/nn/cache.h"
#include "contextpool/nn/padding.h"

namespace contextpool::nn {

// Options of ContextPool1d. Words are words; a wrong one is answered with all of them.
struct ContextPoolOptions {
  int64_t features = 0;               // D of x [B, N, D], C of x [B, C, H, W]
  std::string predictor = "conv";     // conv (two convolutions), mlp (per token), attention (= weights "nonlocal")
  std::string weights = "softmax";    // softmax, unnormalized, uniform, nonlocal
  std::string locality = "gaussian";  // gaussian, none, fixed_window, adaptive_window, random_sparse
  std::string size_norm = "sigmoid";  // sigmoid, softmax (over the tokens of a row), channels (weight against size)
  double ratio = 0.1;                 // r: the largest size, as a share of the length
  int64_t reference_length = 0;       // n in sigma = r n s; 0: each row's own length without padding
  int64_t usual_length = 1024;        // n at which initial_sigma holds where size_range and reference_length are 0
  double initial_sigma = 4;           // size at initialisation
  double size_range = 2;              // how far a token's size may lie from the learnt one, as a difference of
                                      // logarithms; 0: any size up to r n, the paper's form
  double size_floor = 0.25;           // the smallest size where size_range is not 0, as a share of initial_sigma
  int64_t hidden = 64;                // channels between the predictor's two layers
  int64_t kernel = 3;                 // taps of the predictor's convolutions, odd unless causal
  int64_t groups = 1;                 // G slices of the features, each with its own weights and sizes
  bool causal = false;                // nothing that comes after a token reaches it; needs reference_length
  double window = 4;                  // R of fixed_window: every token with |i - j| <= R counts
  int64_t seed = 0;                   // of random_sparse, with
  int64_t layer = 0;                  // the layer's number, so that layers look at different places
};

// Options of ContextPool2d, with defaults for maps. n is (height + width) / 2 of the map, distances those between
// pixels; a map cannot be causal.
struct ContextPool2dOptions : ContextPoolOptions {
  ContextPool2dOptions(int64_t features = 0);  // ratio 0.05, usual_length 14, initial_sigma 0.5, hidden 24
  std::array<int64_t, 2> stride{1, 1};         // target (ho, wo) sits on pixel (ho * stride[0], wo * stride[1])
};

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
  std::shared_ptr<PredictorImpl> predictor_;         // predictor.{conv1,conv2,fc1,fc2}.{weight,bias}
  torch::nn::Linear theta_{nullptr}, phi_{nullptr};  // theta.weight, phi.weight of "nonlocal"
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
  torch::nn::Linear theta_{nullptr}, phi_{nullptr};
};
TORCH_MODULE(ContextPool2d);

}  // namespace contextpool::nn
