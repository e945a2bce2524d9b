#include "contextpool/nn/context_pool.h"
#include "nn/context_pool_options.h"
#include "nn/pooling.h"
#include "nn/predictor.h"

namespace contextpool::nn {
namespace {

using torch::Tensor;

void check_input(const ContextPoolOptions& options, const Tensor& x) {
  const bool last = x.dim() == 4 && x.size(3) == options.features;
  TORCH_CHECK_VALUE(x.dim() == 4 && x.size(1) == options.features, "ContextPool2d: x must be [batch, ",
                    options.features, ", height, width], but is ", x.sizes(),
                    last ? "; x.permute({0, 3, 1, 2}) puts the channels second" : "");
}

// (h + w) / 2 of each map, without the rows and columns that are all padding: [B, 1, 1].
Tensor own_lengths(const Tensor& padded, torch::ScalarType type) {
  const auto real = padded.logical_not();
  return ((real.any(2).sum(1) + real.any(1).sum(1)).to(type) / 2).view({-1, 1, 1});
}

// sigma of the predicted channels [B, channels, H, W] at the targets, [B, G, Ho, Wo]; 0 at padded ones.
Tensor map_sizes(const ContextPool2dOptions& options, const Tensor& channels, const Tensor& padded) {
  if (!predicts_sizes(options)) return {};
  const auto height = channels.size(2), width = channels.size(3);
  auto length = torch::scalar_tensor(options.reference_length > 0 ? static_cast<double>(options.reference_length)
                                                                  : static_cast<double>(height + width) / 2,
                                     torch::kDouble);
  if (padded.defined() && options.reference_length == 0) length = own_lengths(padded, channels.scalar_type());
  const auto sizes =
      predicted_sizes(options, channels.flatten(2), padded.defined() ? padded.flatten(1) : padded, length)
          .unflatten(2, {height, width});
  return at_targets(options, padded.defined() ? sizes.masked_fill(padded.unsqueeze(1), 0) : sizes);
}

Prediction predict(const ContextPool2dOptions& options, PredictorImpl* predictor, const Tensor& x,
                   const Tensor& padded) {
  if (predictor == nullptr) return {};
  const auto channels = predictor->forward(x, padded);
  const auto sizes = map_sizes(options, channels, padded);
  return {predicts_weights(options) ? channels.slice(1, 0, options.groups).flatten(2) : Tensor(),
          sizes.defined() ? sizes.flatten(2) : sizes,
          {},
          {}};
}

}  // namespace

ContextPool2dImpl::ContextPool2dImpl(ContextPool2dOptions options) : options_(std::move(options)) {
  validate(options_);
  reset();
}

void ContextPool2dImpl::reset() {
  if (predicted_channels(options_) > 0) {
    predictor_ = register_module("predictor", std::make_shared<PredictorImpl>(options_, /*dims=*/2));
  }
  if (pairwise_weights(options_)) {
    const auto linear = torch::nn::LinearOptions(options_.features, options_.features).bias(false);
    theta_ = register_module("theta", Linear(linear));
    phi_ = register_module("phi", Linear(linear));
  }
}

void ContextPool2dImpl::reset_parameters() {
  if (predictor_) predictor_->reset_parameters();
  if (theta_) theta_->reset_parameters();
  if (phi_) phi_->reset_parameters();
}

void ContextPool2dImpl::reset_sizes() {
  if (predictor_) predictor_->reset_sizes();
}

void ContextPool2dImpl::pretty_print(std::ostream& stream) const {
  stream << describe("contextpool::nn::ContextPool2d", options_);
}

Tensor ContextPool2dImpl::forward(const Tensor& x, const Padding& padding) { return run(x, padding, nullptr); }

std::pair<Tensor, Windows> ContextPool2dImpl::forward_with_windows(const Tensor& x, const Padding& padding) {
  Windows windows;
  auto y = run(x, padding, &windows);
  return {std::move(y), std::move(windows)};
}

Tensor ContextPool2dImpl::run(const Tensor& x, const Padding& padding, Windows* windows) {
  check_input(options_, x);
  const auto mask = padding.mask({x.size(0), x.size(2), x.size(3)}, x.device());
  if (x.numel() == 0 && windows == nullptr) return at_targets(options_, x).clone();
  const auto padded = mask.defined() ? mask.logical_not() : mask;
  const auto real = mask.defined() ? x.masked_fill(padded.unsqueeze(1), 0) : x;
  const auto targets = at_targets(options_, real);
  Prediction prediction;
  try {
    prediction = predict(options_, predictor_.get(), real, padded);
    if (theta_) {
      prediction.queries = theta_(targets.flatten(2).transpose(1, 2));
      prediction.keys = phi_(real.flatten(2).transpose(1, 2));
    }
  } catch (const c10::Error&) {
    explain_dtype("ContextPool2d", *this, x);
    throw;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (windows != nullptr) {
    *windows = windows_of(options_, real, prediction, padded.defined() ? padded.flatten(1) : padded,
                          {x.size(2), x.size(3)}, {targets.size(2), targets.size(3)});
  }
  return x.numel() == 0 ? targets.clone() : pool_map(options_, real, prediction, padded);
}

}  // namespace contextpool::nn
