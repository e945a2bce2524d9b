#include "nn/mixers/context_pool.h"

#include <type_traits>

#include "nn/mixers/mixers.h"

namespace contextpool::nn {

using torch::Tensor;

template <typename Pool>
ContextPoolMixerImpl<Pool>::ContextPoolMixerImpl(const MixerOptions& o, Pool pool)
    : features_(o.features),
      dims_(o.dims),
      plain_(o.residual == "none" && o.taps == 0),
      adds_x_(o.residual != "none"),
      pool_(std::move(pool)) {
  for (const auto& child : pool_->named_children()) register_module(child.key(), child.value());
  residual_ = std::make_unique<Residual>("ContextPool", *this,
                                         Residual::Options{.kind = o.residual,
                                                           .features = o.features,
                                                           .rank = o.rank,
                                                           .context_features = o.context_features,
                                                           .dims = o.dims});
  if (o.taps > 0) {
    taps_ = register_module("taps", Depthwise(DepthwiseOptions{.features = o.features,
                                                               .taps = o.taps,
                                                               .causal = o.causal,
                                                               .dims = o.dims,
                                                               .bias = false,
                                                               .residual = adds_x_ ? "plain" : "none"}));
  }
}

template <typename Pool>
Tensor ContextPoolMixerImpl<Pool>::combine(const Tensor& real, const Tensor& pooled, const Tensor& beside,
                                           const Tensor& context, const Tensor& mask) {
  if (!adds_x_) return beside.defined() ? pooled + beside : pooled;
  return residual_->apply(beside.defined() ? beside : real, pooled, real, context, mask);
}

template <typename Pool>
Tensor ContextPoolMixerImpl<Pool>::forward(const Tensor& x, const Padding& padding, const Tensor& context) {
  if (plain_) return pool_(x, padding);
  const auto mask = mask_of("ContextPool", x, padding, features_, dims_);
  const auto real = without_padding(x, mask, dims_);
  return combine(real, pool_(real, Padding(mask)), taps_ ? taps_(real) : Tensor(), context, mask);
}

template <typename Pool>
std::pair<Tensor, Windows> ContextPoolMixerImpl<Pool>::forward_with_windows(const Tensor& x, const Padding& padding,
                                                                            const Tensor& context) {
  if (plain_) return pool_->forward_with_windows(x, padding);
  const auto mask = mask_of("ContextPool", x, padding, features_, dims_);
  const auto real = without_padding(x, mask, dims_);
  auto [pooled, windows] = pool_->forward_with_windows(real, Padding(mask));
  return {combine(real, pooled, taps_ ? taps_(real) : Tensor(), context, mask), std::move(windows)};
}

template <typename Pool>
Tensor ContextPoolMixerImpl<Pool>::step(const Tensor& x, MixerCache& cache, const Padding& padding,
                                        const Tensor& context) {
  if constexpr (std::is_same_v<Pool, ContextPool1d>) {
    if (plain_) return pool_->step(x, cache, padding);
    const auto mask = mask_of("ContextPool", x, padding, features_, dims_);
    const auto real = without_padding(x, mask, dims_);
    const auto pooled = pool_->step(real, cache, Padding(mask));
    // The pool's step has put the tokens into the cache.
    return combine(real, pooled, taps_ ? taps_->convolve_last(cache, x.size(1)) : Tensor(), context, mask);
  } else {
    TORCH_CHECK_VALUE(false, "ContextPool2d: a map has no order, so it has no steps");
  }
}

template <typename Pool>
void ContextPoolMixerImpl<Pool>::reset_parameters() {
  pool_->reset_parameters();
  residual_->reset_parameters();
  if (taps_) taps_->reset_parameters();
}

template <typename Pool>
void ContextPoolMixerImpl<Pool>::finish_initialisation() {
  pool_->reset_sizes();
  residual_->reset_parameters();
  if (taps_) taps_->reset_parameters();
}

template class ContextPoolMixerImpl<ContextPool1d>;
template class ContextPoolMixerImpl<ContextPool2d>;

Mixer make_context_pool(const MixerOptions& options) {
  std::shared_ptr<MixerImpl> mixer;
  if (options.dims == 2) {
    ContextPool2dOptions pool;
    static_cast<ContextPoolOptions&>(pool) = options.pool;
    pool.features = options.features;
    pool.causal = options.causal;
    mixer = std::make_shared<ContextPoolMixerImpl<ContextPool2d>>(options, ContextPool2d(pool));
  } else {
    auto pool = options.pool;
    pool.features = options.features;
    pool.causal = options.causal;
    mixer = std::make_shared<ContextPoolMixerImpl<ContextPool1d>>(options, ContextPool1d(pool));
  }
  return mixer;
}

}  // namespace contextpool::nn
