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

class DepthwiseImpl : public torch::nn::Module {
 public:
  explicit DepthwiseImpl(DepthwiseOptions options);

  // x [batch, tokens, features]. Padded tokens count as 0, whatever they hold.
  torch::Tensor forward(const torch::Tensor& x, const Padding& padding = {});

  // The next tokens of a causal row. cache holds the last taps - 1 inputs (undefined at the start) and is renewed.
  torch::Tensor step(const torch::Tensor& x, torch::Tensor& cache);

  const DepthwiseOptions& options() const { return options_; }

  torch::Tensor weight, bias;  // [features, 1, taps], [features]

 private:
  torch::Tensor convolve(const torch::Tensor& padded) const;

  DepthwiseOptions options_;
};
TORCH_MODULE(Depthwise);

}  // namespace contextpool::nn
