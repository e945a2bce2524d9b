// A depthwise convolution: each channel mixes its neighbours with weights that do not depend on the text. Of 15 taps,
// the control that stands where ContextPool stands.
//
//   y_ic = b_c + sum_k w_ck x_(i - left + k)c,   k = 0 .. taps - 1;   left = taps - 1 if causal, else taps / 2
//
// On maps [B, C, H, W], a square of taps x taps. What a residual adds to it: nn/mixer.h.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>

#include "contextpool/nn/mixer.h"

namespace contextpool::nn {

struct DepthwiseOptions {
  int64_t features = 512;
  int64_t taps = 15;
  bool causal = false;
  int64_t dims = 1;  // 1: rows, 2: maps
  bool bias = true;
  std::string residual = "none";  // none, plain, scale or gated
  int64_t rank = 15;              // of gated
  int64_t context_features = 0;   // of gated's context; 0: features
};

// The inputs of a causal convolution seen so far; all are kept, so that the newest can be cropped.
using DepthwiseCache = MixerCache;

class Residual;

class DepthwiseImpl : public MixerImpl {
 public:
  explicit DepthwiseImpl(DepthwiseOptions options);
  ~DepthwiseImpl() override;

  torch::Tensor forward(const torch::Tensor& x, const Padding& padding = {},
                        const torch::Tensor& context = {}) override;
  torch::Tensor step(const torch::Tensor& x, DepthwiseCache& cache, const Padding& padding = {},
                     const torch::Tensor& context = {}) override;
  // Weights uniform within +-1 / sqrt(taps of a channel), bias 0.
  void reset_parameters() override;
  void finish_initialisation() override;

  // The convolution, with a plain residual but no other, at the last tokens of those that a cache holds as "features".
  torch::Tensor convolve_last(const MixerCache& cache, int64_t tokens) const;

  const DepthwiseOptions& options() const { return options_; }

  torch::Tensor weight, bias;  // [features, 1, taps] ([features, 1, taps, taps] for maps), [features] or undefined

 private:
  DepthwiseOptions options_;
  std::unique_ptr<Residual> residual_;
};
TORCH_MODULE(Depthwise);

}  // namespace contextpool::nn
