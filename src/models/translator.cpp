#include "contextpool/models/translator.h"

#include <cmath>

namespace contextpool::models {
namespace {

constexpr int64_t kIgnored = -100;  // the target that cross_entropy leaves out

void check_tokens(const char* what, const torch::Tensor& tokens) {
  TORCH_CHECK_VALUE(tokens.dim() == 2 && tokens.scalar_type() == torch::kInt64 && tokens.size(1) > 0,
                    "translator: ", what, " must be int64 [batch, length] with at least one token, but is ",
                    tokens.scalar_type(), " ", tokens.sizes(),
                    tokens.dim() == 1 ? "; unsqueeze(0) makes a batch of one row" : "");
}

// A matrix of `parts` matrices one under the other.
void unit_scaling(const torch::Tensor& weight, int64_t parts) {
  const auto rows = weight.size(0) / parts;
  const double bound = std::sqrt(6.0 / static_cast<double>(rows + weight.size(1)));
  weight.uniform_(-bound, bound);
}

// Attention and feed-forward of a block; norms too. Its mixers have rules of their own.
void reset_block(nn::TransformerBlockImpl& block) {
  for (const auto& item : block.named_parameters()) {
    const std::string_view name = item.key();
    const auto& p = item.value();
    const bool norm = name.starts_with("norm") || name.starts_with("cross_norm");
    const bool ours = norm || name.starts_with("attention.") || name.starts_with("cross_attention.") ||
                      name.starts_with("feedforward.");
    if (!ours || name.find(".local.") != std::string_view::npos) continue;
    if (p.dim() == 1) {
      p.fill_(norm && name.ends_with("weight") ? 1 : 0);
    } else {
      unit_scaling(p, name.ends_with("qkv.weight") ? 3 : name.ends_with("kv.weight") ? 2 : 1);
    }
  }
  for (const auto& module : block.modules(/*include_self=*/false)) {
    if (auto* local = dynamic_cast<nn::LocalWindowsImpl*>(module.get())) local->reset_parameters();
  }
  for (const char place : nn::kPlaces) {
    if (auto mixer = block.mixer(place)) mixer->reset_parameters();
  }
}

void reset_norm(torch::nn::LayerNorm& norm) {
  norm->weight.fill_(1);
  norm->bias.zero_();
}

}  // namespace

void TranslatorCache::crop(int64_t length) {
  TORCH_CHECK_VALUE(length >= 0 && length <= length_, "translator: crop keeps the first symbols, from 0 to all ",
                    length_, ", but was asked for ", length);
  for (auto& block : blocks_) block.crop(length);
  length_ = length;
}

void TranslatorCache::select(const torch::Tensor& rows) {
  for (auto& block : blocks_) block.select(rows);
}

void TranslatorCache::reorder(const torch::Tensor& rows, const torch::Tensor& sentences) {
  for (auto& block : blocks_) block.reorder(rows, sentences);
}

void TranslatorCache::repeat(int64_t times) {
  for (auto& block : blocks_) block.repeat(times);
}

TranslatorImpl::TranslatorImpl(TranslatorOptions options) : options_(std::move(options)) {
  const auto& o = options_;
  validate(o);
  token_ = register_module("token", torch::nn::Embedding(o.vocabulary, o.features));
  if (o.source_vocabulary > 0) {
    source_token_ = register_module("source_token", torch::nn::Embedding(o.source_vocabulary, o.features));
  }
  position_ = register_module("position",
                              nn::Positions(nn::PositionsOptions{
                                  .kind = o.positions, .features = o.features, .heads = o.heads, .length = o.length}));
  dropout_ = register_module("dropout", torch::nn::Dropout(o.dropout));
  const auto encoder = register_module("encoder", torch::nn::ModuleList());
  for (int64_t layer = 0; layer < o.layers; ++layer) {
    encoder_.emplace_back(encoder_block_options(o, layer));
    encoder->push_back(encoder_.back());
  }
  const auto norm = [&] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.features})); };
  encoder_norm_ = register_module("encoder_norm", norm());
  const auto decoder = register_module("decoder", torch::nn::ModuleList());
  for (int64_t layer = 0; layer < decoder_layers(o); ++layer) {
    decoder_.emplace_back(decoder_block_options(o, layer));
    decoder->push_back(decoder_.back());
  }
  decoder_norm_ = register_module("decoder_norm", norm());
  if (!o.tied) {
    head_ = register_module("head", nn::Linear(torch::nn::LinearOptions(o.features, o.vocabulary).bias(false)));
  }
  reset_parameters();
}

void TranslatorImpl::reset_parameters() {
  const torch::NoGradGuard no_grad;
  const double deviation = 1 / std::sqrt(static_cast<double>(options_.features));
  token_->weight.normal_(0, deviation);
  if (source_token_) source_token_->weight.normal_(0, deviation);
  if (head_) head_->weight.normal_(0, deviation);
  for (auto& block : encoder_) reset_block(*block);
  for (auto& block : decoder_) {
    reset_block(*block);
    if (auto mixer = block->cross_mixer()) mixer->reset_parameters();
  }
  reset_norm(encoder_norm_);
  reset_norm(decoder_norm_);
}

torch::Tensor TranslatorImpl::embed(torch::nn::Embedding& embedding, const torch::Tensor& tokens, int64_t first,
                                    const torch::Tensor& at) {
  const auto scaled = embedding(tokens) * std::sqrt(static_cast<double>(options_.features));
  return dropout_(position_->add(scaled, first, at));
}

torch::Tensor TranslatorImpl::logits(const torch::Tensor& x) {
  const auto normed = decoder_norm_(x);
  return head_ ? head_(normed) : torch::linear(normed, token_->weight);
}

EncodedSource TranslatorImpl::encode(const torch::Tensor& source, const nn::Padding& source_padding) {
  check_tokens("source", source);
  const auto real = source_padding.mask(source.sizes(), source.device());
  const auto at = nn::positions_of(real);
  // Any number may stand where there is no token.
  const auto tokens = real.defined() ? source.masked_fill(real.logical_not(), 0) : source;
  auto x = embed(source_token_ ? source_token_ : token_, tokens, 0, at);
  const auto rotation = position_->rotation(x, 0, at);
  for (auto& block : encoder_) x = block(x, rotation, nn::Padding(real));
  return {encoder_norm_(x), real};
}

std::vector<nn::Windows> TranslatorImpl::encoder_windows(const torch::Tensor& source) {
  std::vector<nn::Windows> all;
  if (!encoder_.front()->context_pool()) return all;
  check_tokens("source", source);
  auto x = embed(source_token_ ? source_token_ : token_, source, 0, {});
  const auto rotation = position_->rotation(x, 0, {});
  for (auto& block : encoder_) {
    auto [y, windows] = block->forward_with_windows(x, rotation);
    x = y;
    all.push_back(std::move(windows));
  }
  return all;
}

torch::Tensor TranslatorImpl::decode(const torch::Tensor& target, const EncodedSource& source, bool last_only) {
  check_tokens("target", target);
  TORCH_CHECK_VALUE(target.size(0) == source.features.size(0), "translator: the target has ", target.size(0),
                    " rows, but the source has ", source.features.size(0));
  auto x = embed(token_, target, 0, {});
  const auto rotation = position_->rotation(x);
  const nn::Padding real(source.real);
  for (auto& block : decoder_) x = block(x, block->remember(source.features, real), rotation);
  return logits(last_only ? x.slice(1, -1) : x);
}

torch::Tensor TranslatorImpl::forward(const torch::Tensor& source, const nn::Padding& source_padding,
                                      const torch::Tensor& target) {
  return decode(target, encode(source, source_padding));
}

TranslatorCache TranslatorImpl::start(const EncodedSource& source) {
  TranslatorCache cache;
  for (auto& block : decoder_) {
    cache.blocks_.emplace_back().memory = block->remember(source.features, nn::Padding(source.real));
  }
  return cache;
}

torch::Tensor TranslatorImpl::step(const torch::Tensor& target, TranslatorCache& cache) {
  check_tokens("target", target);
  TORCH_CHECK_VALUE(cache.blocks_.size() == decoder_.size(), "translator: the cache is of ", cache.blocks_.size(),
                    " layers, but the decoder has ", decoder_.size(), "; begin with start");
  auto x = embed(token_, target, cache.length_, {});
  const auto rotation = position_->rotation(x, cache.length_);
  for (std::size_t i = 0; i < decoder_.size(); ++i) x = decoder_[i]->step(x, cache.blocks_[i], rotation);
  cache.length_ += target.size(1);
  return logits(x);
}

torch::Tensor label_smoothed_loss(const torch::Tensor& logits, const torch::Tensor& targets, const nn::Padding& padding,
                                  double smoothing) {
  namespace F = torch::nn::functional;
  TORCH_CHECK_VALUE(logits.dim() == 3 && targets.sizes() == logits.sizes().slice(0, 2),
                    "label_smoothed_loss: logits must be [batch, length, vocabulary] and targets [batch, length], but "
                    "are ",
                    logits.sizes(), " and ", targets.sizes());
  TORCH_CHECK_VALUE(smoothing >= 0 && smoothing < 1, "label_smoothed_loss: smoothing must be in [0, 1), but is ",
                    smoothing);
  const auto real = padding.mask(targets.sizes(), targets.device());
  const auto counted = real.defined() ? targets.masked_fill(real.logical_not(), kIgnored) : targets;
  const auto scores = logits.to(torch::promote_types(logits.scalar_type(), torch::kFloat));
  return F::cross_entropy(scores.flatten(0, 1), counted.flatten(),
                          F::CrossEntropyFuncOptions().ignore_index(kIgnored).label_smoothing(smoothing));
}

}  // namespace contextpool::models
