#include "contextpool/nn/block.h"

#include "nn/names.h"

namespace contextpool::nn {
namespace {

// What is no number in padding would become so in the gradients of the norms and matrices, which sum over tokens.
torch::Tensor without_padding(const torch::Tensor& x, const torch::Tensor& mask) {
  return mask.defined() ? x.masked_fill(mask.logical_not().unsqueeze(-1), 0) : x;
}

}  // namespace

TransformerBlockImpl::TransformerBlockImpl(TransformerBlockOptions options) : options_(std::move(options)) {
  const auto& o = options_;
  check_word("TransformerBlock", "mixer", o.mixer, {"none", "context_pool", "depthwise"});
  check_word("TransformerBlock", "placement", o.placement, {"after_attention", "after_block", "before_attention"});
  TORCH_CHECK_VALUE(o.feedforward > 0, "TransformerBlock: feedforward must be positive, but is ", o.feedforward);
  norm1_ = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.features})));
  attention_ = register_module(
      "attention",
      Attention(AttentionOptions{
          .features = o.features, .heads = o.heads, .dropout = o.dropout, .causal = o.causal, .reach = o.reach}));
  if (o.mixer == "context_pool") {
    options_.pool.features = o.features;
    options_.pool.causal = o.causal;
    context_pool_ = register_module("context_pool", ContextPool1d(o.pool));
  } else if (o.mixer == "depthwise") {
    depthwise_ = register_module(
        "depthwise", Depthwise(DepthwiseOptions{.features = o.features, .taps = o.taps, .causal = o.causal}));
  }
  norm2_ = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.features})));
  const auto feedforward = register_module("feedforward", std::make_shared<torch::nn::Module>());
  up_ = feedforward->register_module("up", torch::nn::Linear(o.features, o.feedforward));
  down_ = feedforward->register_module("down", torch::nn::Linear(o.feedforward, o.features));
  dropout_ = register_module("dropout", torch::nn::Dropout(o.dropout));
}

template <typename Attend, typename Mix>
torch::Tensor TransformerBlockImpl::run(const torch::Tensor& x, Attend attend, Mix mix) {
  const auto at = [&](const char* place, const torch::Tensor& value) {
    return options_.mixer != "none" && options_.placement == place ? mix(value) : value;
  };
  const auto attended = attend(at("before_attention", norm1_(x)));
  const auto middle = x + dropout_(at("after_attention", attended));
  return at("after_block", middle + dropout_(down_(torch::gelu(up_(norm2_(middle))))));
}

torch::Tensor TransformerBlockImpl::real_tokens(const torch::Tensor& x, const Padding& padding) const {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == options_.features, "TransformerBlock: x must be [batch, tokens, ",
              options_.features, "], but is ", x.sizes());
  return padding.mask({x.size(0), x.size(1)}, x.device());
}

torch::Tensor TransformerBlockImpl::forward(const torch::Tensor& x, const Rotation& rotation, const Padding& padding) {
  const auto mask = real_tokens(x, padding);
  const Padding live(mask);
  const auto attend = [&](const torch::Tensor& value) { return attention_(value, rotation, live); };
  const auto mix = [&](const torch::Tensor& value) {
    return context_pool_ ? context_pool_(value, live) : depthwise_(value, live);
  };
  return run(without_padding(x, mask), attend, mix);
}

std::pair<torch::Tensor, Windows> TransformerBlockImpl::forward_with_windows(const torch::Tensor& x,
                                                                             const Rotation& rotation,
                                                                             const Padding& padding) {
  if (!context_pool_) return {forward(x, rotation, padding), {}};
  const auto mask = real_tokens(x, padding);
  const Padding live(mask);
  Windows windows;
  const auto attend = [&](const torch::Tensor& value) { return attention_(value, rotation, live); };
  const auto mix = [&](const torch::Tensor& value) {
    auto [pooled, predicted] = context_pool_->forward_with_windows(value, live);
    windows = std::move(predicted);
    return pooled;
  };
  const auto y = run(without_padding(x, mask), attend, mix);
  return {y, windows};
}

torch::Tensor TransformerBlockImpl::step(const torch::Tensor& x, BlockCache& cache, const Rotation& rotation,
                                         const Padding& padding) {
  const auto mask = real_tokens(x, padding);
  const Padding live(mask);
  const auto attend = [&](const torch::Tensor& value) {
    return attention_->step(value, cache.attention, rotation, live);
  };
  const auto mix = [&](const torch::Tensor& value) {
    return context_pool_ ? context_pool_->step(value, cache.pool, live)
                         : depthwise_->step(value, cache.depthwise, live);
  };
  return run(without_padding(x, mask), attend, mix);
}

namespace {

// The parts that the block has: the others have seen nothing.
template <typename F>
void for_each_used(BlockCache& cache, F f) {
  for (TokenCache* part : {static_cast<TokenCache*>(&cache.attention), static_cast<TokenCache*>(&cache.pool),
                           static_cast<TokenCache*>(&cache.depthwise)}) {
    if (part->rows()) f(*part);
  }
}

}  // namespace

void BlockCache::crop(int64_t length) {
  for_each_used(*this, [&](TokenCache& part) { part.crop(length); });
}

void BlockCache::select(const torch::Tensor& rows) {
  for_each_used(*this, [&](TokenCache& part) { part.select(rows); });
}

void BlockCache::repeat(int64_t times) {
  for_each_used(*this, [&](TokenCache& part) { part.repeat(times); });
}

}  // namespace contextpool::nn
