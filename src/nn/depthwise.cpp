#include "contextpool/nn/depthwise.h"

#include <algorithm>
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

torch::Tensor DepthwiseImpl::live(const torch::Tensor& x, const Padding& padding) const {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == options_.features, "Depthwise: x must be [batch, tokens, ",
              options_.features, "], but is ", x.sizes());
  const auto mask = padding.mask({x.size(0), x.size(1)}, x.device());
  return mask.defined() ? x.masked_fill(mask.logical_not().unsqueeze(-1), 0) : x;
}

torch::Tensor DepthwiseImpl::forward(const torch::Tensor& x, const Padding& padding) {
  const auto right = options_.causal ? 0 : options_.taps / 2;
  return convolve(torch::constant_pad_nd(live(x, padding), {0, 0, options_.taps - 1 - right, right}));
}

torch::Tensor DepthwiseImpl::step(const torch::Tensor& x, DepthwiseCache& cache, const Padding& padding) {
  TORCH_CHECK(options_.causal, "Depthwise: only the causal convolution has steps");
  cache.check_rows("Depthwise", x);
  const auto seen = std::min(cache.length(), options_.taps - 1);
  const auto near = cache.append("features", live(x, padding)).slice(1, cache.length() - seen);
  cache.advance(x.size(1));
  return convolve(torch::constant_pad_nd(near, {0, 0, options_.taps - 1 - seen, 0}));
}

torch::Tensor DepthwiseImpl::convolve(const torch::Tensor& padded) const {
  namespace F = torch::nn::functional;
  const auto options = F::Conv1dFuncOptions().bias(bias).groups(options_.features);
  return F::conv1d(padded.transpose(1, 2), weight, options).transpose(1, 2);
}

}  // namespace contextpool::nn
