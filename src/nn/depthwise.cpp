#include "contextpool/nn/depthwise.h"

#include <cmath>

namespace contextpool::nn {

DepthwiseImpl::DepthwiseImpl(DepthwiseOptions options) : options_(options) {
  TORCH_CHECK_VALUE(options_.features > 0 && options_.taps > 0,
                    "Depthwise: features and taps must be positive, but are ", options_.features, " and ",
                    options_.taps);
  TORCH_CHECK_VALUE(options_.causal || options_.taps % 2 == 1,
                    "Depthwise: taps must be odd, to have a middle, unless causal, but are ", options_.taps);
  weight = register_parameter("weight", torch::empty({options_.features, 1, options_.taps}));
  bias = register_parameter("bias", torch::zeros({options_.features}));
  const double bound = 1 / std::sqrt(static_cast<double>(options_.taps));
  torch::nn::init::uniform_(weight, -bound, bound);
}

torch::Tensor DepthwiseImpl::forward(const torch::Tensor& x, const Padding& padding) {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == options_.features, "Depthwise: x must be [batch, tokens, ",
              options_.features, "], but is ", x.sizes());
  const auto mask = padding.mask({x.size(0), x.size(1)});
  const auto live = mask.defined() ? x.masked_fill(mask.logical_not().unsqueeze(-1), 0) : x;
  const auto right = options_.causal ? 0 : options_.taps / 2;
  return convolve(torch::constant_pad_nd(live, {0, 0, options_.taps - 1 - right, right}));
}

torch::Tensor DepthwiseImpl::step(const torch::Tensor& x, torch::Tensor& cache) {
  TORCH_CHECK(options_.causal, "Depthwise: only the causal convolution has steps");
  if (!cache.defined()) cache = torch::zeros({x.size(0), options_.taps - 1, options_.features}, x.options());
  const auto padded = torch::cat({cache, x}, 1);
  cache = padded.slice(1, x.size(1)).clone();
  return convolve(padded);
}

torch::Tensor DepthwiseImpl::convolve(const torch::Tensor& padded) const {
  namespace F = torch::nn::functional;
  const auto options = F::Conv1dFuncOptions().bias(bias).groups(options_.features);
  return F::conv1d(padded.transpose(1, 2), weight, options).transpose(1, 2);
}

}  // namespace contextpool::nn
