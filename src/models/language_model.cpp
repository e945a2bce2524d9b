#include "contextpool/models/language_model.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/words.h"
#include "contextpool/base/options.h"
#include "nn/add_norm.h"

namespace contextpool::models {
namespace {

constexpr double kDeviation = 0.02;  // of the initial weights
// Far beyond any use, so that the sizes in a damaged file are refused before memory is asked for.
constexpr int64_t kMaxSize = int64_t{1} << 24;

// ContextPool, attention and mixers know the smallest values of these.
bool checked_elsewhere(std::string_view name) {
  return name.starts_with("pool_") || name == "window_doublings" || name == "dilated_heads" || name == "mixer_heads";
}

void check_options(const LanguageModelOptions& options) {
  for_each_option(options, [](const char* name, const auto& value, const char*) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, int64_t>) {
      TORCH_CHECK_VALUE((checked_elsewhere(name) || value > 0) && value <= kMaxSize, "language model: ", name,
                        " must be from 1 to ", kMaxSize, ", but is ", value);
    }
  });
  check_word("language model", "attention", options.attention, {"full", "window", "adaptive_span"});
  TORCH_CHECK_VALUE(options.window_first <= options.window_last,
                    "language model: window_first must be at most window_last, ", options.window_last, ", but is ",
                    options.window_first);
  TORCH_CHECK_VALUE(options.span_loss >= 0 && std::isfinite(options.span_loss),
                    "language model: span_loss must not be negative, but is ", options.span_loss);
  TORCH_CHECK_VALUE(options.dropout >= 0 && options.dropout < 1, "language model: dropout must be in [0, 1), but is ",
                    options.dropout);
}

void check_tokens(const torch::Tensor& tokens) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.scalar_type() == torch::kInt64 && tokens.size(1) > 0,
              "language model: tokens must be int64 [batch, length] with at least one token, but are ",
              tokens.scalar_type(), " ", tokens.sizes(),
              tokens.dim() == 1 ? "; tokens.unsqueeze(0) makes a batch of one row" : "");
}

}  // namespace

nn::TransformerBlockOptions block_of(const LanguageModelOptions& options, int64_t layer) {
  nn::TransformerBlockOptions block{.features = options.features,
                                    .heads = options.heads,
                                    .feedforward = options.feedforward,
                                    .dropout = options.dropout,
                                    .causal = true,
                                    .reach = reach_of(options, layer),
                                    .mixer = options.mixer,
                                    .placement = options.placement,
                                    .taps = options.taps,
                                    .mix = options.mix,
                                    .pool = options.pool};
  block.pool.layer = layer;
  return block;
}

std::string to_json(const LanguageModelOptions& options) { return contextpool::to_json(list_options(options)); }

LanguageModelOptions language_model_of_files() {
  LanguageModelOptions options;
  options.pool.size_range = 0;
  return options;
}

LanguageModelOptions from_json(const std::string& text, const std::string& who) {
  LanguageModelOptions options;
  assign_options(options, read_json(list_options(language_model_of_files()), text, who));
  return options;
}

LanguageModelImpl::LanguageModelImpl(LanguageModelOptions options) : options_(std::move(options)) {
  const auto& o = options_;
  check_options(o);
  token_ = register_module("token", torch::nn::Embedding(o.vocabulary, o.features));
  position_ = register_module("position",
                              nn::Positions(nn::PositionsOptions{
                                  .kind = o.positions, .features = o.features, .heads = o.heads, .length = o.length}));
  dropout_ = register_module("dropout", torch::nn::Dropout(o.dropout));
  const auto blocks = register_module("blocks", torch::nn::ModuleList());
  for (int64_t layer = 0; layer < o.layers; ++layer) {
    blocks_.emplace_back(block_of(o, layer));
    blocks->push_back(blocks_.back());
  }
  norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.features})));
  head_ = register_module("head", nn::Linear(o.features, o.vocabulary));
  reset_parameters();
}

void LanguageModelImpl::reset_parameters() {
  const torch::NoGradGuard no_grad;
  for (auto& item : named_parameters()) {
    auto& parameter = item.value();
    if (parameter.dim() > 1) {
      parameter.normal_(0, kDeviation);
    } else {
      parameter.fill_(item.key().ends_with("weight") ? 1 : 0);  // of norms; else biases and spans
    }
  }
  for (auto& block : blocks_) block->finish_initialisation();
}

std::vector<torch::Tensor> LanguageModelImpl::spans() const {
  std::vector<torch::Tensor> all;
  for (const auto& block : blocks_) {
    if (block->attention()->span.defined()) all.push_back(block->attention()->span);
  }
  return all;
}

torch::Tensor LanguageModelImpl::span_loss() const {
  const auto all = spans();
  if (all.empty()) return {};
  return torch::stack(all).mean() * (options_.span_loss * static_cast<double>(options_.span_limit));
}

void LanguageModelImpl::clamp_spans() {
  const torch::NoGradGuard no_grad;
  for (auto& span : spans()) span.clamp_(0, 1);
}

std::optional<int64_t> LanguageModelCache::rows() const {
  return blocks_.empty() ? std::nullopt : blocks_.front().rows();
}

void LanguageModelCache::crop(int64_t length) {
  symbols_.crop(length);
  for (auto& block : blocks_) block.crop(length);
}

void LanguageModelCache::select(const torch::Tensor& rows) {
  symbols_.select(rows);
  for (auto& block : blocks_) block.select(rows);
}

void LanguageModelCache::repeat(int64_t times) {
  symbols_.repeat(times);
  for (auto& block : blocks_) block.repeat(times);
}

torch::Tensor LanguageModelImpl::embed(const torch::Tensor& tokens, int64_t first, const torch::Tensor& at) {
  return dropout_(position_->add(token_(tokens), first, at));
}

torch::Tensor LanguageModelImpl::forward(const torch::Tensor& tokens, const nn::Padding& padding) {
  check_tokens(tokens);
  const auto real = padding.mask(tokens.sizes(), tokens.device());
  const auto at = nn::positions_of(real);
  const auto x = embed(tokens, 0, at);
  const auto rotation = position_->rotation(x, 0, at);
  nn::Stream stream{x, {}};
  for (auto& block : blocks_) stream = block->pass(stream, rotation, nn::Padding(real));
  if (!stream.branch.defined()) return head_(norm_(stream.x));
  return head_(nn::add_norm(stream.x, stream.branch, norm_).normed);
}

std::vector<nn::Windows> LanguageModelImpl::windows(const torch::Tensor& tokens) {
  std::vector<nn::Windows> all;
  if (!blocks_.front()->context_pool()) return all;
  check_tokens(tokens);
  auto x = embed(tokens, 0, {});
  const auto rotation = position_->rotation(x, 0, {});
  for (auto& block : blocks_) {
    auto [y, windows] = block->forward_with_windows(x, rotation);
    x = y;
    all.push_back(std::move(windows));
  }
  return all;
}

torch::Tensor LanguageModelImpl::step(const torch::Tensor& tokens, LanguageModelCache& cache,
                                      const nn::Padding& padding) {
  check_tokens(tokens);
  TORCH_CHECK_VALUE(cache.rows().value_or(tokens.size(0)) == tokens.size(0), "language model: the cache has ",
                    cache.rows().value_or(0), " rows, but the new tokens have ", tokens.size(0));
  cache.blocks_.resize(blocks_.size());
  const auto first = cache.length();
  const auto fresh = padding.mask(tokens.sizes(), tokens.device());
  const auto real = cache.symbols_.append_mask(fresh, tokens);
  const auto at = real.defined() ? nn::positions_of(real).slice(1, first) : real;
  auto x = embed(tokens, first, at);
  const auto rotation = position_->rotation(x, first, at);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    x = blocks_[i]->step(x, cache.blocks_[i], rotation, nn::Padding(fresh));
  }
  cache.symbols_.advance(tokens.size(1));
  return head_(norm_(x));
}

}  // namespace contextpool::models
