#include <algorithm>

#include "contextpool/nn/context_pool.h"
#include "nn/context_pool_options.h"
#include "nn/pooling.h"
#include "nn/predictor.h"

namespace contextpool::nn {
namespace {

using torch::Tensor;

constexpr int64_t kFirstRoom = 64;  // tokens a cache has room for at first

// Writes rows [B, T, K] behind the first `length` rows of a store [B, room, K], which grows to twice what it must hold.
void append(Tensor& store, int64_t length, const Tensor& rows) {
  const auto needed = length + rows.size(1);
  if (!store.defined() || store.size(1) < needed) {
    const auto room = store.defined() ? 2 * needed : std::max(kFirstRoom, needed);
    auto larger = torch::empty({rows.size(0), room, rows.size(2)}, rows.options());
    if (length > 0) larger.slice(1, 0, length).copy_(store.slice(1, 0, length));
    store = larger;
  }
  store.slice(1, length, needed).copy_(rows);
}

void check_input(const ContextPoolOptions& options, const Tensor& x) {
  TORCH_CHECK_VALUE(x.dim() == 3 && x.size(2) == options.features, "ContextPool1d: x must be [batch, tokens, ",
                    options.features, "], but is ", x.sizes());
}

// sigma_i = r n s_i of the predicted channels [B, channels, N]; 0 at padded tokens.
Tensor row_sizes(const ContextPoolOptions& options, const Tensor& channels, const Tensor& padded) {
  if (!predicts_sizes(options)) return {};
  auto sizes = normalized_sizes(options, channels, padded);
  if (options.reference_length > 0) {
    sizes = sizes * (options.ratio * static_cast<double>(options.reference_length));
  } else if (padded.defined()) {
    sizes = sizes * (options.ratio * padded.logical_not().sum(1).to(sizes.scalar_type())).view({-1, 1, 1});
  } else {
    sizes = sizes * (options.ratio * static_cast<double>(channels.size(2)));
  }
  return padded.defined() ? sizes.masked_fill(padded.unsqueeze(1), 0) : sizes;
}

Prediction predict(const ContextPoolOptions& options, PredictorImpl* predictor, const Tensor& x, const Tensor& padded) {
  if (predictor == nullptr) return {};
  const auto channels = predictor->forward(x, padded).transpose(1, 2);
  return {predicts_weights(options) ? channels.slice(1, 0, options.groups) : Tensor(),
          row_sizes(options, channels, padded),
          {},
          {}};
}

}  // namespace

void ContextPoolCache::reorder(const Tensor& rows) {
  for (auto* store : {&features_, &weights_, &keys_}) {
    if (store->defined()) *store = store->index_select(0, rows);
  }
}

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
    theta_ = register_module("theta", torch::nn::Linear(linear));
    phi_ = register_module("phi", torch::nn::Linear(linear));
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

Tensor ContextPool1dImpl::forward(const Tensor& x, const Padding& padding) {
  check_input(options_, x);
  const auto mask = padding.mask({x.size(0), x.size(1)});
  if (x.numel() == 0) return x.clone();
  const auto padded = mask.defined() ? mask.logical_not() : mask;
  const auto real = mask.defined() ? x.masked_fill(padded.unsqueeze(2), 0) : x;
  auto prediction = predict(options_, predictor_.get(), real, padded);
  if (theta_) {
    prediction.queries = theta_(real);
    prediction.keys = phi_(real);
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return pool_row(options_, real, prediction, padded, x.size(1));
}

ContextPoolState ContextPool1dImpl::state(const Tensor& x, const Padding& padding) {
  check_input(options_, x);
  const auto mask = padding.mask({x.size(0), x.size(1)});
  const auto padded = mask.defined() ? mask.logical_not() : mask;
  const auto real = mask.defined() ? x.masked_fill(padded.unsqueeze(2), 0) : x;
  return shown(options_, real, predict(options_, predictor_.get(), real, padded), padded, {x.size(1)}, {x.size(1)});
}

Tensor ContextPool1dImpl::step(const Tensor& x, ContextPoolCache& cache) {
  const torch::NoGradGuard no_grad;
  check_input(options_, x);
  TORCH_CHECK_VALUE(options_.causal, "ContextPool1d: step is for causal modules; set causal in the options");
  TORCH_CHECK_VALUE(x.size(1) > 0, "ContextPool1d: step needs at least one new token, but x is ", x.sizes());
  TORCH_CHECK_VALUE(!cache.features_.defined() || cache.features_.size(0) == x.size(0), "ContextPool1d: the cache has ",
                    cache.features_.size(0), " rows, but x has ", x.size(0));
  const auto before = cache.length_, tokens = before + x.size(1);
  append(cache.features_, before, x);
  const auto features = cache.features_.slice(1, 0, tokens);

  Prediction prediction;
  if (predictor_) {
    // The new tokens and as many before them as their channels depend on.
    const auto seen = std::min(before, predictor_->reach());
    prediction = predict(options_, predictor_.get(), features.slice(1, before - seen), {});
    if (prediction.sizes.defined()) prediction.sizes = prediction.sizes.slice(2, seen);
    if (prediction.weights.defined()) {
      append(cache.weights_, before, prediction.weights.slice(2, seen).transpose(1, 2));
      prediction.weights = cache.weights_.slice(1, 0, tokens).transpose(1, 2);
    }
  }
  if (theta_) {
    append(cache.keys_, before, phi_(x));
    prediction.queries = theta_(x);
    prediction.keys = cache.keys_.slice(1, 0, tokens);
  }
  cache.length_ = tokens;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return pool_row(options_, features, prediction, {}, x.size(1));
}

}  // namespace contextpool::nn
