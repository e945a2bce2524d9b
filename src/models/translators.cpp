#include "contextpool/models/translators.h"

#include <algorithm>
#include <map>

#include "base/words.h"
#include "nn/context_pool_options.h"

namespace contextpool::models {
namespace {

// "local,local,full": a kind in the lowest layers, full above.
std::string lowest(const std::string& kind, int64_t count, int64_t layers) {
  std::string text;
  for (int64_t i = 0; i < std::min(count, layers); ++i) text += kind + ",";
  return count < layers ? text + "full" : text.substr(0, text.size() - 1);
}

void add_variants(std::vector<NamedTranslator>& models, const std::string& name, const TranslatorOptions& plain) {
  const auto size = std::to_string(plain.layers) + " + " + std::to_string(decoder_layers(plain)) + " layers of " +
                    std::to_string(plain.features);
  models.push_back({name, "translator, " + size, plain});
  auto local = plain;
  local.encoder_attention = lowest("local", (plain.layers + 1) / 2, plain.layers);
  models.push_back({name + "-local", "translator with local attention, " + size, local});
  auto area = plain;
  area.encoder_attention = lowest("area", 2, plain.layers);
  area.decoder_attention = area.cross_attention = lowest("area", 2, decoder_layers(plain));
  models.push_back({name + "-area", "translator with area attention, " + size, area});
  auto mixed = plain;
  mixed.mixer = "context_pool";
  models.push_back({"cp-" + name, "translator with ContextPool, " + size, mixed});
  mixed.mixer = "depthwise";
  models.push_back({"dw-" + name, "translator with a depthwise convolution in its place, " + size, mixed});
}

std::vector<NamedTranslator> make_models() {
  std::vector<NamedTranslator> models;
  add_variants(models, "nmt-tiny", {.layers = 2, .features = 128, .heads = 4, .feedforward = 512});
  add_variants(models, "nmt-small", {.layers = 2, .features = 256, .heads = 4, .feedforward = 1024});
  add_variants(models, "nmt-base", {});
  add_variants(models, "nmt-big", {.features = 1024, .heads = 16, .feedforward = 4096, .dropout = 0.3});
  add_variants(models, "nmt-multi30k",
               {.vocabulary = 10000,
                .layers = 4,
                .features = 128,
                .heads = 4,
                .feedforward = 256,
                .dropout = 0.3,
                .attention_dropout = 0,
                .activation_dropout = 0});
  return models;
}

// How many areas of up to `width` tokens a row of `length` has: width 1, its tokens.
double areas_of(int64_t length, int64_t width) {
  double areas = 0;
  for (int64_t w = 1; w <= std::min(width, length); ++w) areas += static_cast<double>(length - w + 1);
  return areas;
}

// What a row of `queries` tokens sees of `keys`, summed over its tokens; a causal one sees the keys up to its own.
double seen(const std::string& kind, int64_t area_width, int64_t queries, int64_t keys, bool causal) {
  const auto width = kind == "area" ? area_width : 1;
  if (!causal) return static_cast<double>(queries) * areas_of(keys, width);
  double sum = 0;
  for (int64_t i = 1; i <= queries; ++i) sum += areas_of(i, width);
  return sum;
}

// Counts the blocks of a model, each kind once.
class Counter {
 public:
  Counter(const TranslatorOptions& options, int64_t source, int64_t target)
      : options_(options), source_(source), target_(target) {}

  void add_encoder(int64_t layer) {
    const auto o = encoder_block_options(options_, layer);
    add(o.reach.kind, [&](TranslatorCost& cost) {
      const nn::TransformerBlock block(o);
      matrices(cost, *block);
      attention(cost, o.reach.kind, source_, source_, /*causal=*/false);
      for (const auto& [place, mixer] : nn::mixers_of(block->options())) pooling(cost, mixer, source_);
    });
  }

  void add_decoder(int64_t layer) {
    const auto o = decoder_block_options(options_, layer);
    add(o.block.reach.kind + "+" + o.cross_attention, [&](TranslatorCost& cost) {
      const nn::DecoderBlock block(o);
      matrices(cost, *block);
      attention(cost, o.block.reach.kind, target_, target_, /*causal=*/true);
      attention(cost, o.cross_attention, target_, source_, /*causal=*/false);
      for (const auto& [place, mixer] : nn::mixers_of(block->options())) pooling(cost, mixer, target_);
      pooling(cost, {.kind = o.cross_mixer, .features = options_.features, .causal = true, .pool = options_.pool},
              target_);
    });
  }

  const TranslatorCost& total() const { return total_; }

 private:
  template <typename Count>
  void add(const std::string& kind, Count count) {
    const auto [known, is_new] = known_.try_emplace(kind);
    if (is_new) count(known->second);
    total_.parameters += known->second.parameters;
    total_.flops += known->second.flops;
    total_.pooling_flops += known->second.pooling_flops;
  }

  // Matrices and convolutions use each of their weights once a token of their row; those of keys and values over the
  // source are the source's.
  void matrices(TranslatorCost& cost, const nn::TransformerBlockImpl& block) const {
    for (const auto& item : block.named_parameters()) {
      cost.parameters += item.value().numel();
      if (item.value().dim() < 2) continue;
      const bool of_source = !block.options().causal || item.key().starts_with("cross_attention.kv");
      cost.flops += 2.0 * static_cast<double>(item.value().numel() * (of_source ? source_ : target_));
    }
  }
  void attention(TranslatorCost& cost, const std::string& kind, int64_t queries, int64_t keys, bool causal) const {
    const double pairs = seen(kind, options_.area_width, queries, keys, causal);
    cost.flops += 2 * 2.0 * static_cast<double>(options_.features) * pairs;  // a dot product and a sum
  }
  static void pooling(TranslatorCost& cost, const nn::MixerOptions& mixer, int64_t length) {
    if (mixer.kind != "context_pool") return;
    const double pass = 2.0 * static_cast<double>(mixer.features) * seen("full", 1, length, length, mixer.causal);
    cost.pooling_flops += nn::pairwise_weights(mixer.pool) ? 2 * pass : pass;
  }

  const TranslatorOptions& options_;
  int64_t source_, target_;
  std::map<std::string, TranslatorCost> known_;
  TranslatorCost total_;
};

}  // namespace

const std::vector<NamedTranslator>& translators() {
  static const auto models = make_models();
  return models;
}

const NamedTranslator& find_translator(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& model : translators()) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  TORCH_CHECK_VALUE(false, "unknown translator \"", name, "\"", did_you_mean(name, names));
}

TranslatorCost cost(const TranslatorOptions& options, int64_t source_length, int64_t target_length) {
  validate(options);
  TORCH_CHECK_VALUE(source_length > 0 && target_length > 0, "translator: lengths must be positive, but are ",
                    source_length, " and ", target_length);
  Counter counter(options, source_length, target_length);
  for (int64_t layer = 0; layer < options.layers; ++layer) counter.add_encoder(layer);
  for (int64_t layer = 0; layer < decoder_layers(options); ++layer) counter.add_decoder(layer);
  auto cost = counter.total();
  const auto matrix = options.vocabulary * options.features;
  const auto embeddings = options.tied ? 1 : 2;
  cost.parameters += matrix * embeddings + options.source_vocabulary * options.features + 4 * options.features;
  if (options.positions == "learned") cost.parameters += options.length * options.features;
  cost.flops += 2.0 * static_cast<double>(matrix) * static_cast<double>(target_length);
  return cost;
}

double least_parameters(const TranslatorOptions& options) {
  const auto d = static_cast<double>(options.features), ff = static_cast<double>(options.feedforward);
  const auto encoder = static_cast<double>(options.layers) * (4 * d * d + 2 * d * ff);
  const auto decoder = static_cast<double>(decoder_layers(options)) * (8 * d * d + 2 * d * ff);
  return static_cast<double>(options.vocabulary + options.source_vocabulary) * d + encoder + decoder;
}

}  // namespace contextpool::models
