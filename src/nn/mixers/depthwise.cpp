#include "contextpool/nn/depthwise.h"

#include <cmath>

#include "contextpool/ops/short_convolution.h"
#include "nn/mixers/mixers.h"
#include "nn/mixers/residual.h"

namespace contextpool::nn {
namespace {

// The operator adds a plain residual too.
torch::Tensor convolve_rows(const DepthwiseImpl& d, const torch::Tensor& x, int64_t left, bool residual) {
  const auto bias = d.bias.defined() ? std::optional(d.bias) : std::nullopt;
  return short_convolution(x, d.weight.squeeze(1), bias, left, residual);
}

}  // namespace

DepthwiseImpl::DepthwiseImpl(DepthwiseOptions options) : options_(std::move(options)) {
  const auto& o = options_;
  TORCH_CHECK_VALUE(o.features > 0 && o.taps > 0, "Depthwise: features and taps must be positive, but are ", o.features,
                    " and ", o.taps);
  TORCH_CHECK_VALUE(o.dims == 1 || o.dims == 2, "Depthwise: dims must be 1 (rows) or 2 (maps), but is ", o.dims);
  TORCH_CHECK_VALUE(o.dims == 1 || !o.causal, "Depthwise: a map has no order, so it cannot be causal");
  TORCH_CHECK_VALUE(o.causal || o.taps % 2 == 1,
                    "Depthwise: taps must be odd, to have a middle, unless causal, but are ", o.taps);
  const auto shape =
      o.dims == 1 ? std::vector<int64_t>{o.features, 1, o.taps} : std::vector<int64_t>{o.features, 1, o.taps, o.taps};
  weight = register_parameter("weight", torch::empty(shape));
  if (o.bias) bias = register_parameter("bias", torch::empty({o.features}));
  DepthwiseImpl::reset_parameters();
  residual_ = std::make_unique<Residual>("Depthwise", *this,
                                         Residual::Options{.kind = o.residual,
                                                           .features = o.features,
                                                           .rank = o.rank,
                                                           .context_features = o.context_features,
                                                           .dims = o.dims});
}

DepthwiseImpl::~DepthwiseImpl() = default;

void DepthwiseImpl::reset_parameters() {
  const auto bound = 1 / std::sqrt(static_cast<double>(weight[0].numel()));
  torch::nn::init::uniform_(weight, -bound, bound);
  if (bias.defined()) torch::nn::init::zeros_(bias);
  if (residual_) residual_->reset_parameters();
}

void DepthwiseImpl::finish_initialisation() { residual_->reset_parameters(); }

torch::Tensor DepthwiseImpl::forward(const torch::Tensor& x, const Padding& padding, const torch::Tensor& context) {
  const auto mask = mask_of("Depthwise", x, padding, options_.features, options_.dims);
  const auto real = without_padding(x, mask, options_.dims);
  const auto right = options_.causal ? 0 : options_.taps / 2;
  if (options_.dims == 2) {
    const auto mixed =
        torch::conv2d(real, weight, bias, /*stride=*/1, /*padding=*/right, /*dilation=*/1, options_.features);
    return residual_->apply(real, mixed, real, context, mask);
  }
  const bool plain = options_.residual == "plain";
  const auto mixed = convolve_rows(*this, real, options_.taps - 1 - right, plain);
  return plain ? mixed : residual_->apply(real, mixed, real, context, mask);
}

torch::Tensor DepthwiseImpl::step(const torch::Tensor& x, DepthwiseCache& cache, const Padding& padding,
                                  const torch::Tensor& context) {
  TORCH_CHECK(options_.causal, "Depthwise: only the causal convolution has steps");
  cache.check_rows("Depthwise", x);
  const auto mask = mask_of("Depthwise", x, padding, options_.features, options_.dims);
  const auto real = without_padding(x, mask, options_.dims);
  cache.append("features", real);
  cache.advance(x.size(1));
  const auto mixed = convolve_last(cache, x.size(1));
  return options_.residual == "plain" ? mixed : residual_->apply(real, mixed, real, context, mask);
}

torch::Tensor DepthwiseImpl::convolve_last(const MixerCache& cache, int64_t tokens) const {
  const auto before = options_.taps - 1;
  return convolve_rows(*this, last_tokens(cache, tokens, before), before, options_.residual == "plain")
      .slice(1, before);
}

Mixer make_depthwise(const MixerOptions& o) {
  return std::shared_ptr<MixerImpl>(
      std::make_shared<DepthwiseImpl>(DepthwiseOptions{.features = o.features,
                                                       .taps = o.taps,
                                                       .causal = o.causal,
                                                       .dims = o.dims,
                                                       .residual = o.residual,
                                                       .rank = o.rank,
                                                       .context_features = o.context_features}));
}

}  // namespace contextpool::nn
