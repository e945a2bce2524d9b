// Small translators in all their variety.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "../device.h"
#include "contextpool/models/translator.h"

namespace contextpool::testing {

inline constexpr int64_t kSymbols = 23;

inline models::TranslatorOptions small_translator(const std::string& mixer = "none") {
  return {.vocabulary = kSymbols,
          .layers = 2,
          .features = 16,
          .heads = 2,
          .feedforward = 32,
          .length = 80,
          .area_width = 3,
          .mixer = mixer,
          .taps = 5,
          .pool = {.reference_length = 16, .hidden = 8}};
}

struct TranslatorCase {
  std::string name;
  models::TranslatorOptions options;
};
inline void PrintTo(const TranslatorCase& one, std::ostream* stream) { *stream << one.name; }

// Every kind of attention, mixers in every place and part, every kind of positions, embeddings that are not shared.
inline std::vector<TranslatorCase> translator_cases() {
  std::vector<TranslatorCase> cases;
  const auto add = [&](
                       const std::string& name, const std::string& mixer,
                       const std::function<void(models::TranslatorOptions&)>& change = [](auto&) {}) {
    auto options = small_translator(mixer);
    change(options);
    cases.push_back({name, options});
  };
  add("plain", "none");
  for (const char* kind : {"local", "area"}) {
    for (const char* mixer : {"none", "context_pool"}) {
      add(std::string(mixer) + "_" + kind, mixer, [&](auto& o) {
        o.encoder_attention = o.decoder_attention = o.cross_attention = std::string(kind) + ",full";
      });
    }
  }
  add("area_above", "none", [](auto& o) { o.encoder_attention = o.cross_attention = "local,area"; });
  for (const char* mixer : {"context_pool", "depthwise"}) {
    for (const char* placement : {"after_attention", "after_block", "before_attention"}) {
      add(std::string(mixer) + "_" + placement, mixer, [&](auto& o) { o.placement = placement; });
    }
    for (const char* part : {"encoder", "decoder", "cross"}) {
      add(std::string(mixer) + "_in_" + part, mixer, [&](auto& o) { o.mixer_in = part; });
    }
  }
  add("places", "none", [](auto& o) { o.mix.places = "A=depthwise,O=context_pool,X=depthwise,D=depthwise"; });
  add("canon_and_dynamic", "none", [](auto& o) { o.mix.places = "A=canon,B=canon,C=dynamic,X=dynamic"; });
  add("gated", "context_pool", [](auto& o) { o.mix.residual = "gated"; });
  add("source_length", "context_pool", [](auto& o) { o.pool_source_length = 20; });
  add("random_sparse", "context_pool", [](auto& o) { o.pool.locality = "random_sparse"; });
  add("gelu_learned", "none", [](auto& o) {
    o.activation = "gelu";
    o.positions = "learned";
  });
  add("rotary", "context_pool", [](auto& o) {
    o.positions = "rotary";
    o.decoder_attention = "local";
  });
  add("not_shared", "none", [](auto& o) {
    o.source_vocabulary = 31;
    o.tied = false;
    o.decoder_layers = 1;
  });
  return cases;
}

// On the tests' device, in eval mode, every parameter random and large enough that each part of the model matters.
inline models::Translator random_translator(const models::TranslatorOptions& options,
                                            torch::ScalarType type = torch::kFloat32) {
  models::Translator model(options);
  model->to(device(), type);
  model->eval();
  const torch::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) {
    auto& parameter = item.value();
    const bool norm = parameter.dim() == 1 && item.key().ends_with("weight");
    parameter.copy_(torch::randn(parameter.sizes(), torch::kFloat64) * 0.3 + (norm ? 1 : 0));
  }
  return model;
}

inline torch::Tensor random_symbols(int64_t batch, int64_t length) {
  return there(torch::randint(kSymbols, {batch, length}));
}

}  // namespace contextpool::testing
