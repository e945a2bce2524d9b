#include "contextpool/nn/block.h"

#include "base/words.h"
#include "contextpool/ops/bias_gelu.h"
#include "nn/add_norm.h"
#include "nn/mixers/context_pool.h"
#include "nn/mixers/mixers.h"

namespace contextpool::nn {
namespace {

constexpr const char* kWho = "TransformerBlock";

constexpr std::size_t index_of(char place) { return kPlaces.find(place); }
constexpr std::size_t kA = index_of('A'), kB = index_of('B'), kO = index_of('O'), kC = index_of('C'),
                      kD = index_of('D'), kE = index_of('E');

std::map<char, std::string> kinds_of(const TransformerBlockOptions& o) {
  check_word(kWho, "mixer", o.mixer, mixer_kinds());
  check_word(kWho, "placement", o.placement, {"after_attention", "after_block", "before_attention"});
  if (!o.mix.places.empty()) return parse_places(kWho, o.mix.places, kPlaces);
  if (o.mixer == "none") return {};
  return {{o.placement == "before_attention" ? 'A' : o.placement == "after_attention" ? 'O' : 'E', o.mixer}};
}

}  // namespace

std::map<char, MixerOptions> mixers_of(const TransformerBlockOptions& o) {
  std::map<char, MixerOptions> mixers;
  for (const auto& [place, kind] : kinds_of(o)) {
    MixerOptions mixer{.kind = kind,
                       .features = place == 'B'   ? 3 * o.features
                                   : place == 'D' ? o.feedforward
                                                  : o.features,
                       .causal = o.causal,
                       .taps = o.mix.taps,
                       .rank = o.mix.rank,
                       .heads = o.mix.heads,
                       .context_features = o.features,
                       .pool = o.pool};
    if (kind == "depthwise" || kind == "context_pool") {
      mixer.taps = kind == "depthwise" ? o.taps : o.mix.pool_taps;
      mixer.residual = o.mix.residual;
    }
    mixers[place] = mixer;
  }
  return mixers;
}

TransformerBlockImpl::TransformerBlockImpl(TransformerBlockOptions options) : options_(std::move(options)) {
  const auto& o = options_;
  TORCH_CHECK_VALUE(o.feedforward > 0, "TransformerBlock: feedforward must be positive, but is ", o.feedforward);
  check_word(kWho, "activation", o.activation, {"gelu", "relu"});
  TORCH_CHECK_VALUE(o.activation_dropout >= 0 && o.activation_dropout < 1,
                    "TransformerBlock: activation_dropout must be in [0, 1), but is ", o.activation_dropout);
  options_.pool.features = o.features;
  options_.pool.causal = o.causal;
  const auto mixers = mixers_of(o);
  norm1_ = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.features})));
  attention_ =
      register_module("attention", Attention(AttentionOptions{.features = o.features,
                                                              .heads = o.heads,
                                                              .dropout = o.attention_dropout.value_or(o.dropout),
                                                              .causal = o.causal,
                                                              .reach = o.reach}));
  std::shared_ptr<torch::nn::Module> several;
  if (mixers.size() > 1) several = register_module("mixers", std::make_shared<torch::nn::Module>());
  for (const char place : kPlaces) {
    const auto found = mixers.find(place);
    if (found == mixers.end()) continue;
    const auto mixer = make_mixer(found->second).ptr();
    several ? several->register_module(std::string(1, place), mixer) : register_module(found->second.kind, mixer);
    mixers_[index_of(place)] = mixer;
  }
  norm2_ = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.features})));
  const auto feedforward = register_module("feedforward", std::make_shared<torch::nn::Module>());
  up_ = feedforward->register_module("up", Linear(o.features, o.feedforward));
  down_ = feedforward->register_module("down", Linear(o.feedforward, o.features));
  dropout_ = register_module("dropout", torch::nn::Dropout(o.dropout));
}

void TransformerBlockImpl::finish_initialisation() {
  for (const auto& mixer : mixers_) {
    if (mixer) mixer->finish_initialisation();
  }
}

Mixer TransformerBlockImpl::mixer(char place) const {
  const auto found = kPlaces.find(place);
  TORCH_CHECK_VALUE(found != std::string_view::npos, "TransformerBlock: there is no place \"", place,
                    "\"; the places are ", kPlaces);
  return mixers_[found];
}

ContextPool1d TransformerBlockImpl::context_pool() const {
  for (const auto& mixer : mixers_) {
    if (const auto* found = dynamic_cast<const ContextPoolMixerImpl<ContextPool1d>*>(mixer.get())) return found->pool();
  }
  return nullptr;
}

// act(D(up(g))); on CUDA the bias and the GELU after the matrix product are one pass.
torch::Tensor TransformerBlockImpl::activated(const torch::Tensor& g, const Mix& mix) {
  torch::Tensor active;
  if (g.is_cuda() && !mixers_[kD] && options_.activation == "gelu") {
    active = bias_gelu(torch::linear(g, up_->weight), up_->bias);
  } else {
    const auto up = mixers_[kD] ? mix(kD, up_(g), g) : up_(g);
    active = options_.activation == "relu" ? torch::relu(up) : torch::gelu(up);
  }
  return options_.activation_dropout > 0 ? torch::dropout(active, options_.activation_dropout, is_training()) : active;
}

Stream TransformerBlockImpl::run(const Stream& in, const Attend& attend, const Mix& mix, const Between& between) {
  const auto at = [&](std::size_t place, const torch::Tensor& value, const torch::Tensor& context = {}) {
    return mixers_[place] ? mix(place, value, context) : value;
  };
  const auto entry = in.branch.defined() ? add_norm(in.x, in.branch, norm1_) : only_norm(in.x, norm1_);
  const auto h = at(kA, entry.normed);
  AttentionImpl::MixProjections mix_projections;
  if (mixers_[kB]) mix_projections = [&](const torch::Tensor& qkv) { return mix(kB, qkv, h); };
  const auto attended = dropout_(at(kO, attend(h, mix_projections), h));
  const auto middle =
      between ? only_norm(between(entry.sum + attended), norm2_) : add_norm(entry.sum, attended, norm2_);
  const auto feedforward = dropout_(down_(activated(at(kC, middle.normed), mix)));
  if (mixers_[kE]) return {at(kE, middle.sum + feedforward), {}};
  return {middle.sum, feedforward};
}

torch::Tensor TransformerBlockImpl::real_tokens(const torch::Tensor& x, const Padding& padding) const {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == options_.features, "TransformerBlock: x must be [batch, tokens, ",
              options_.features, "], but is ", x.sizes());
  return padding.mask({x.size(0), x.size(1)}, x.device());
}

// NaN in padding would reach the gradients of the norms and matrices, which sum over tokens: it is 0 for all parts.
torch::Tensor TransformerBlockImpl::forward(const torch::Tensor& x, const Rotation& rotation, const Padding& padding) {
  return forward_with(x, rotation, padding, {});
}

Stream TransformerBlockImpl::pass(const Stream& in, const Rotation& rotation, const Padding& padding) {
  const auto mask = real_tokens(in.x, padding);
  const Padding as_mask(mask);
  const auto attend = [&](const torch::Tensor& value, const AttentionImpl::MixProjections& mix) {
    return attention_(value, rotation, as_mask, mix);
  };
  const Mix mix = [&](std::size_t place, const torch::Tensor& value, const torch::Tensor& context) {
    return mixers_[place]->forward(value, as_mask, context);
  };
  return run(mask.defined() ? Stream{without_padding(in.sum(), mask, 1), {}} : in, attend, mix);
}

torch::Tensor TransformerBlockImpl::forward_with(const torch::Tensor& x, const Rotation& rotation,
                                                 const Padding& padding, const Between& between) {
  const auto mask = real_tokens(x, padding);
  const Padding as_mask(mask);
  const auto attend = [&](const torch::Tensor& value, const AttentionImpl::MixProjections& mix) {
    return attention_(value, rotation, as_mask, mix);
  };
  const Mix mix = [&](std::size_t place, const torch::Tensor& value, const torch::Tensor& context) {
    return mixers_[place]->forward(value, as_mask, context);
  };
  return run({without_padding(x, mask, 1), {}}, attend, mix, between).sum();
}

std::pair<torch::Tensor, Windows> TransformerBlockImpl::forward_with_windows(const torch::Tensor& x,
                                                                             const Rotation& rotation,
                                                                             const Padding& padding) {
  const auto mask = real_tokens(x, padding);
  const Padding as_mask(mask);
  Windows windows;
  const auto attend = [&](const torch::Tensor& value, const AttentionImpl::MixProjections& mix) {
    return attention_(value, rotation, as_mask, mix);
  };
  const Mix mix = [&](std::size_t place, const torch::Tensor& value, const torch::Tensor& context) {
    auto [mixed, predicted] = mixers_[place]->forward_with_windows(value, as_mask, context);
    if (!windows.log_weight.defined() && !windows.sigma.defined()) windows = std::move(predicted);
    return mixed;
  };
  const auto y = run({without_padding(x, mask, 1), {}}, attend, mix).sum();
  return {y, windows};
}

torch::Tensor TransformerBlockImpl::step(const torch::Tensor& x, BlockCache& cache, const Rotation& rotation,
                                         const Padding& padding) {
  return step_with(x, cache, rotation, padding, {});
}

torch::Tensor TransformerBlockImpl::step_with(const torch::Tensor& x, BlockCache& cache, const Rotation& rotation,
                                              const Padding& padding, const Between& between) {
  const auto mask = real_tokens(x, padding);
  const Padding as_mask(mask);
  const auto attend = [&](const torch::Tensor& value, const AttentionImpl::MixProjections& mix) {
    return attention_->step(value, cache.attention, rotation, as_mask, mix);
  };
  const Mix mix = [&](std::size_t place, const torch::Tensor& value, const torch::Tensor& context) {
    return mixers_[place]->step(value, cache.mixers[place], as_mask, context);
  };
  return run({without_padding(x, mask, 1), {}}, attend, mix, between).sum();
}

namespace {

// The parts that the block has: the others have seen nothing.
template <typename F>
void for_each_used(BlockCache& cache, F f) {
  if (cache.attention.rows()) f(cache.attention);
  for (auto& mixer : cache.mixers) {
    if (mixer.rows()) f(mixer);
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
