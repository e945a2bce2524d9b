// The control that stands where ContextPool stands: a depthwise convolution, each channel mixing its neighbours with
// weights that do not depend on the text.
//
//   y_ic = b_c + sum_k w_ck x_(i - left + k)c,   k = 0 .. taps - 1;   left = taps - 1 if causal, else taps / 2
#pragma once

#include <torch/torch.h>

#include "contextpool/nn/context_pool.h"

namespace contextpool::nn {

struct DepthwiseOptions {
  int64_t features = 512;
  int64_t taps = 15;
  bool causal = false;
};

// The inputs of a causal convolution seen so far; all are kept, so that the newest can be cropped.
class DepthwiseCache : public TokenCache {};

class DepthwiseImpl : public torch::nn::Module {
 public:
  explicit DepthwiseImpl(DepthwiseOptions options);

  // x [batch, tokens, features]. Padded tokens count as 0, whatever they hold.
  torch::Tensor forward(const torch::Tensor& x, const Padding& padding = {});

  // The next tokens of a causal row, which then are in the cache too: equals the last rows of forward over all of them.
  torch::Tensor step(const torch::Tensor& x, DepthwiseCache& cache, const Padding& padding = {});

  const DepthwiseOptions& options() const { return options_; }

  torch::Tensor weight, bias;  // [features, 1, taps], [features]

 private:
  torch::Tensor live(const torch::Tensor& x, const Padding& padding) const;
  torch::Tensor convolve(const torch::Tensor& padded) const;

  DepthwiseOptions options_;
};
TORCH_MODULE(Depthwise);

}  // namespace contextpool::nn
