#include <algorithm>

#include "contextpool/nn/context_pool.h"
#include "nn/context_pool_options.h"
#include "nn/pooling.h"
#include "nn/predictor.h"

namespace contextpool::nn {
namespace {

using torch::Tensor;

void check_input(const ContextPoolOptions& options, const Tensor& x) {
  const bool transposed = x.dim() == 3 && x.size(1) == options.features;
  TORCH_CHECK_VALUE(x.dim() == 3 && x.size(2) == options.features, "ContextPool1d: x must be [batch, tokens, ",
                    options.features, "], but is ", x.sizes(),
                    transposed ? "; x.transpose(1, 2) puts the features last" : "");
}

// sigma_i of the predicted channels [B, channels, N]; 0 at padded tokens.
Tensor row_sizes(const ContextPoolOptions& options, const Tensor& channels, const Tensor& padded) {
  if (!predicts_sizes(options)) return {};
  auto length =
      torch::scalar_tensor(options.reference_length > 0 ? options.reference_length : channels.size(2), torch::kDouble);
  if (padded.defined() && options.reference_length == 0) {
    length = padded.logical_not().sum(1).to(channels.scalar_type()).view({-1, 1, 1});
  }
  const auto sizes = predicted_sizes(options, channels, padded, length);
  return padded.defined() ? sizes.masked_fill(padded.unsqueeze(1), 0) : sizes;
}

Prediction predict(const ContextPoolOptions& options, PredictorImpl* predictor, const Tensor& x, const Tensor& padded) {
  if (predictor == nullptr) return {};
  if (predictor->has_windows(x, padded)) {
    auto [weights, sizes] = predictor->windows(x);
    return {predicts_weights(options) ? weights : Tensor(), sizes, {}, {}};
  }
  const auto channels = predictor->forward(x, padded).transpose(1, 2);
  return {predicts_weights(options) ? channels.slice(1, 0, options.groups) : Tensor(),
          row_sizes(options, channels, padded),
          {},
          {}};
}

}  // namespace

ContextPool1dImpl::ContextPool1dImpl(ContextPoolOptions options) : options_(std::move(options)) {
  validate(options_);
  reset();
}

void ContextPool1dImpl::reset() {
  if (predicted_channels(options_) > 0) {
    predictor_ = register_module("predictor", std::make_shared<PredictorImpl>(options_, /*dims=*/1));
  }
  if (pairwise_weights(options_)) {
    const auto linear = torch::nn::LinearOptions(options_.features, options_.features).bias(false);
    theta_ = register_module("theta", Linear(linear));
    phi_ = register_module("phi", Linear(linear));
  }
}

void ContextPool1dImpl::reset_parameters() {
  if (predictor_) predictor_->reset_parameters();
  if (theta_) theta_->reset_parameters();
  if (phi_) phi_->reset_parameters();
}

void ContextPool1dImpl::reset_sizes() {
  if (predictor_) predictor_->reset_sizes();
}

void ContextPool1dImpl::pretty_print(std::ostream& stream) const {
  stream << describe("contextpool::nn::ContextPool1d", options_);
}

Tensor ContextPool1dImpl::forward(const Tensor& x, const Padding& padding) { return run(x, padding, nullptr); }

std::pair<Tensor, Windows> ContextPool1dImpl::forward_with_windows(const Tensor& x, const Padding& padding) {
  Windows windows;
  auto y = run(x, padding, &windows);
  return {std::move(y), std::move(windows)};
}

Tensor ContextPool1dImpl::run(const Tensor& x, const Padding& padding, Windows* windows) {
  check_input(options_, x);
  const auto mask = padding.mask({x.size(0), x.size(1)}, x.device());
  if (x.numel() == 0 && windows == nullptr) return x.clone();
  const auto padded = mask.defined() ? mask.logical_not() : mask;
  const auto real = mask.defined() ? x.masked_fill(padded.unsqueeze(2), 0) : x;
  Prediction prediction;
  try {
    prediction = predict(options_, predictor_.get(), real, padded);
    if (theta_) {
      prediction.queries = theta_(real);
      prediction.keys = phi_(real);
    }
  } catch (const c10::Error&) {
    explain_dtype("ContextPool1d", *this, x);
    throw;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (windows != nullptr) *windows = windows_of(options_, real, prediction, padded, {x.size(1)}, {x.size(1)});
  return x.numel() == 0 ? x.clone() : pool_row(options_, real, prediction, padded, x.size(1));
}

Tensor ContextPool1dImpl::step(const Tensor& x, ContextPoolCache& cache, const Padding& padding) {
  check_input(options_, x);
  TORCH_CHECK_VALUE(options_.causal, "ContextPool1d: step is for causal modules; set causal in the options");
  TORCH_CHECK_VALUE(x.size(1) > 0, "ContextPool1d: step needs at least one new token, but x is ", x.sizes());
  cache.check_rows("ContextPool1d", x);
  const auto fresh = padding.mask({x.size(0), x.size(1)}, x.device());
  const auto real = fresh.defined() ? x.masked_fill(fresh.logical_not().unsqueeze(2), 0) : x;
  const auto mask = cache.append_mask(fresh, x);
  const auto padded = mask.defined() ? mask.logical_not() : mask;
  const auto before = cache.length();
  const auto features = cache.append("features", real);

  Prediction prediction;
  if (predictor_) {
    // The new tokens and as many before them as their channels depend on.
    const auto seen = std::min(before, predictor_->reach());
    const auto near = [&](const Tensor& all) { return all.defined() ? all.slice(1, before - seen) : all; };
    prediction = predict(options_, predictor_.get(), near(features), near(padded));
    if (prediction.sizes.defined()) prediction.sizes = prediction.sizes.slice(2, seen);
    if (prediction.weights.defined()) {
      prediction.weights = cache.append("weights", prediction.weights.slice(2, seen).transpose(1, 2)).transpose(1, 2);
    }
  }
  if (theta_) {
    prediction.queries = theta_(real);
    prediction.keys = cache.append("keys", phi_(real));
  }
  cache.advance(x.size(1));
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return pool_row(options_, features, prediction, padded, x.size(1));
}

}  // namespace contextpool::nn
