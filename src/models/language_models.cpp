#include "contextpool/models/language_models.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/words.h"
#include "nn/context_pool_options.h"

namespace contextpool::models {
namespace {

// The prefix of a name says what stands after attention: nothing, ContextPool (cp-) or the depthwise control (dw-).
// What is no row of the paper's stands after both norms: canon layers (canon-), or ContextPool in the form that
// docs/mixers.md recommends for text, with a gate and taps beside it and with windows of its own for each of 8 or 16
// groups of channels (gated-cp-). Its sizes are those that were best there: the paper's in models of 512 features,
// bounded in small ones.
NamedLanguageModel named(const std::string& name, const std::string& summary, LanguageModelOptions options) {
  std::string mixer;
  if (name.starts_with("cp-")) {
    options.mixer = "context_pool";
    mixer = " with ContextPool";
  } else if (name.starts_with("dw-")) {
    options.mixer = "depthwise";
    mixer = " with a depthwise convolution in its place";
  } else if (name.starts_with("canon-")) {
    options.mix.places = "AC=canon";
    mixer = " with canon layers after both norms";
  } else if (name.starts_with("gated-cp-")) {
    options.mix.places = "AC=context_pool";
    options.mix.residual = "gated";
    options.mix.pool_taps = 4;
    const bool large = options.features >= 512;
    options.pool.groups = large ? 8 : 16;
    options.pool.size_range = large ? 0 : options.pool.size_range;
    options.pool.initial_sigma = large ? options.pool.initial_sigma : 2;
    mixer = " with gated ContextPool and taps after both norms";
  }
  return {name, summary + mixer, std::move(options)};
}

std::vector<NamedLanguageModel> make_models() {
  std::vector<NamedLanguageModel> models;
  const auto paper_size = [&](const std::string& prefix, int64_t layers) {
    models.push_back(named(prefix + "transformer-" + std::to_string(layers),
                           "decoder of " + std::to_string(layers) + " layers", {.layers = layers}));
  };
  for (const auto layers : {4, 6, 8, 12}) paper_size("", layers);
  for (const auto layers : {4, 6, 11, 12, 14}) paper_size("cp-", layers);
  paper_size("dw-", 6);
  for (const auto* prefix : {"canon-", "gated-cp-"}) {
    for (const auto layers : {6, 12}) paper_size(prefix, layers);
  }
  const auto limited = [&](const std::string& name, const std::string& summary, LanguageModelOptions options) {
    for (const auto* prefix : {"", "cp-"}) {
      options.attention = "window";
      models.push_back(named(prefix + ("longformer-" + name), summary + ", sliding windows", options));
      options.attention = "adaptive_span";
      models.push_back(named(prefix + ("adaptive-span-" + name), summary + ", adaptive spans", options));
    }
  };
  limited("12", "decoder of 12 layers", {.layers = 12});
  const LanguageModelOptions tiny{
      .layers = 2, .features = 64, .heads = 2, .feedforward = 256, .length = 256, .pool = {.reference_length = 256}};
  const LanguageModelOptions small{
      .layers = 4, .features = 128, .heads = 4, .feedforward = 512, .length = 256, .pool = {.reference_length = 256}};
  constexpr std::array kPrefixes = {"", "cp-", "dw-", "canon-", "gated-cp-"};
  for (const auto* prefix : kPrefixes) models.push_back(named(std::string(prefix) + "tiny", "for tests", tiny));
  auto limited_tiny = tiny;
  limited_tiny.window_first = 8;
  limited_tiny.window_last = 64;
  limited_tiny.dilated_heads = 1;
  limited_tiny.span_limit = 256;
  limited("tiny", "for tests", limited_tiny);
  for (const auto* prefix : kPrefixes) {
    models.push_back(named(std::string(prefix) + "small", "for a machine without a GPU", small));
  }
  return models;
}

// How many pairs (token, token it sees) the tokens before position `end` make, with a window on every stride-th token.
double pairs_before(int64_t end, int64_t window, int64_t stride) {
  double pairs = 0;
  for (int64_t first = 0; first < std::min(stride, end); ++first) {  // every stride-th token: a row of its own
    const int64_t count = (end - first + stride - 1) / stride;
    const auto tokens = static_cast<double>(count);
    const auto growing = std::min(tokens, static_cast<double>(window));
    pairs += growing * (growing + 1) / 2 + (tokens - growing) * static_cast<double>(window);
  }
  return pairs;
}

// The same for a row, as the mean over heads.
double pairs_of(const nn::Reach& reach, int64_t heads, int64_t length) {
  if (reach.kind == "full") return pairs_before(length, length, 1);
  if (reach.kind == "adaptive_span") return pairs_before(length, reach.span_limit, 1);
  const auto between = [&](int64_t begin, int64_t end, int64_t window, int64_t stride) {
    return pairs_before(end, window, stride) - pairs_before(begin, window, stride);
  };
  const auto dilated = static_cast<double>(reach.dilated_heads) / static_cast<double>(heads);
  double pairs = 0;
  for (int64_t begin = 0, doublings = 0; begin < length; ++doublings) {
    const auto end = doublings < reach.window_doublings ? std::min(length, reach.row << doublings) : length;
    const auto window = reach.window << doublings;
    pairs += (1 - dilated) * between(begin, end, window, 1) + dilated * between(begin, end, window, reach.dilation + 1);
    begin = end;
  }
  return pairs;
}

}  // namespace

const std::vector<NamedLanguageModel>& language_models() {
  static const auto models = make_models();
  return models;
}

const NamedLanguageModel& find_language_model(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& model : language_models()) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  TORCH_CHECK_VALUE(false, "unknown model \"", name, "\"", did_you_mean(name, names),
                    " (`contextpool models` lists them)");
}

Cost cost(const LanguageModelOptions& options, int64_t length) {
  auto one = options;  // the layers' parameters are alike: one is built and counted
  one.layers = 1;
  const LanguageModel model(one);
  Cost cost;
  const auto layers = static_cast<double>(options.layers);
  for (const auto& item : model->named_parameters()) {
    const bool in_block = item.key().starts_with("blocks.");
    const auto size = item.value().numel();
    cost.parameters += in_block ? size * options.layers : size;
    // Matrices and convolutions use each of their weights once a token.
    const bool multiplied = item.value().dim() > 1 && (in_block || item.key().starts_with("head."));
    if (multiplied) cost.flops += 2.0 * static_cast<double>(size) * (in_block ? layers : 1);
  }
  const double multiply_add = 2.0 * static_cast<double>(options.features);
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const auto pairs = pairs_of(reach_of(options, layer), options.heads, length);
    cost.flops += 2 * multiply_add * pairs / static_cast<double>(length);  // a dot product and a sum
  }
  // One sum over the tokens up to the target for every ContextPool, for all layers.
  const double tokens = (static_cast<double>(length) + 1) / 2 * layers;
  for (const auto& [place, mixer] : nn::mixers_of(block_of(options, 0))) {
    const double pass = 2.0 * static_cast<double>(mixer.features) * tokens;
    if (mixer.kind == "context_pool") cost.pooling_flops += nn::pairwise_weights(mixer.pool) ? 2 * pass : pass;
  }
  return cost;
}

namespace {

// Of a layer's mixers.
double mixer_parameters(const LanguageModelOptions& options) {
  double count = 0;
  try {
    for (const auto& [place, mixer] : nn::mixers_of(block_of(options, 0))) count += nn::least_parameters(mixer);
  } catch (const c10::Error&) {
    return 0;  // a mixer or a place that is not known: building the model says which
  }
  return count;
}

}  // namespace

double least_parameters(const LanguageModelOptions& o) {
  const auto size = [](int64_t n) { return static_cast<double>(n); };
  const auto features = size(o.features);
  auto layer = features * (4 * features + 2 * size(o.feedforward));
  layer += mixer_parameters(o);
  const auto learned = o.positions == "learned" ? size(o.length) : 0;
  return size(o.layers) * layer + (2 * size(o.vocabulary) + learned) * features;
}

namespace {

struct LanguageModelTraits {
  using Options = LanguageModelOptions;
  using Module = LanguageModel;
  static constexpr const char* kName = "language_model";
  static const std::vector<NamedLanguageModel>& named() { return language_models(); }
  static Options of_files() { return language_model_of_files(); }
  static double least_parameters(const Options& options) { return models::least_parameters(options); }
  static Cost cost(const Options& options, int64_t length) {
    const auto row = length > 0 ? length : options.length;
    auto cost = models::cost(options, row);
    cost.per = "token of " + std::to_string(row);
    return cost;
  }
};

// --context is the model's `length`; a stage's is --length.
class LanguageModelFamily : public FamilyOf<LanguageModelTraits> {
 public:
  std::string flag(const std::string& option) const override {
    return option == "length" ? "context" : Family::flag(option);
  }
};

}  // namespace

std::unique_ptr<Family> language_model_family() { return std::make_unique<LanguageModelFamily>(); }

}  // namespace contextpool::models
