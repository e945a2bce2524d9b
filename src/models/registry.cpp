#include "contextpool/models/registry.h"

#include <utility>

#include "nn/context_pool_options.h"
#include "nn/names.h"

namespace contextpool::models {
namespace {

// The prefix of a name says what stands after attention: nothing, ContextPool (cp-) or the depthwise control (dw-).
NamedModel named(const std::string& name, const std::string& summary, LanguageModelOptions options) {
  if (name.starts_with("cp-")) options.mixer = "context_pool";
  if (name.starts_with("dw-")) options.mixer = "depthwise";
  const char* mixer = name.starts_with("cp-")   ? " with ContextPool"
                      : name.starts_with("dw-") ? " with a depthwise convolution in its place"
                                                : "";
  return {name, summary + mixer, std::move(options)};
}

std::vector<NamedModel> make_models() {
  std::vector<NamedModel> models;
  const auto paper_size = [&](const std::string& prefix, int64_t layers) {
    models.push_back(named(prefix + "transformer-" + std::to_string(layers),
                           "decoder of " + std::to_string(layers) + " layers", {.layers = layers}));
  };
  for (const auto layers : {4, 6, 8, 12}) paper_size("", layers);
  for (const auto layers : {4, 6, 11, 12, 14}) paper_size("cp-", layers);
  paper_size("dw-", 6);
  const LanguageModelOptions tiny{
      .layers = 2, .features = 64, .heads = 2, .feedforward = 256, .length = 256, .pool = {.reference_length = 256}};
  const LanguageModelOptions small{
      .layers = 4, .features = 128, .heads = 4, .feedforward = 512, .length = 256, .pool = {.reference_length = 256}};
  for (const auto* prefix : {"", "cp-", "dw-"})
    models.push_back(named(std::string(prefix) + "tiny", "for tests", tiny));
  for (const auto* prefix : {"", "cp-", "dw-"}) {
    models.push_back(named(std::string(prefix) + "small", "for a machine without a GPU", small));
  }
  return models;
}

}  // namespace

const std::vector<NamedModel>& language_models() {
  static const auto models = make_models();
  return models;
}

const NamedModel& find_language_model(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& model : language_models()) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  TORCH_CHECK_VALUE(false, "unknown model \"", name, "\"; did you mean \"", nn::nearest(name, names),
                    "\"? `contextpool models` lists them");
}

Cost cost(const LanguageModelOptions& options, int64_t length) {
  auto one = options;  // the layers are alike: one is built and counted
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
  // One dot product or one sum over the tokens that a causal token sees, for all layers.
  const double pass = 2.0 * static_cast<double>(options.features) * (static_cast<double>(length) + 1) / 2 * layers;
  cost.flops += 2 * pass;
  if (options.mixer == "context_pool") {
    cost.pooling_flops = nn::pairwise_weights(options.pool) ? 2 * pass : pass;
  }
  return cost;
}

}  // namespace contextpool::models
