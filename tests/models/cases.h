// Small language models in all their variety.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../device.h"
#include "contextpool/models/language_model.h"

namespace contextpool::testing {

inline models::LanguageModelOptions small_options(const std::string& mixer = "none") {
  return {.vocabulary = 30,
          .layers = 2,
          .features = 16,
          .heads = 2,
          .feedforward = 32,
          .length = 128,
          .mixer = mixer,
          .taps = 5,
          .pool = {.reference_length = 64, .hidden = 8}};
}

struct ModelCase {
  std::string name;
  models::LanguageModelOptions options;
};

// Every mixer in every place with every kind of positions, every reach of attention, sets of places, then every
// option of ContextPool that can be causal.
inline std::vector<ModelCase> model_cases() {
  std::vector<ModelCase> cases;
  for (const std::string mixer : {"none", "context_pool", "depthwise"}) {
    for (const std::string placement : {"after_attention", "after_block", "before_attention"}) {
      for (const std::string positions : {"rotary", "learned", "sinusoidal"}) {
        if (mixer == "none" && placement != "after_attention") continue;
        auto options = small_options(mixer);
        options.placement = placement;
        options.positions = positions;
        cases.push_back({mixer + "_" + placement + "_" + positions, options});
      }
    }
  }
  for (const std::string mixer : {"none", "context_pool"}) {
    for (const std::string attention : {"window", "adaptive_span"}) {
      auto options = small_options(mixer);
      options.attention = attention;
      options.layers = 3;
      options.length = 40;  // windows double from there
      options.window_first = 4;
      options.window_last = 20;
      options.window_doublings = 1;
      options.dilated_heads = 1;
      options.span_limit = 50;
      cases.push_back({mixer + "_" + attention, options});
    }
  }
  const auto pool = [&](const std::string& name, const std::function<void(nn::ContextPoolOptions&)>& change) {
    auto options = small_options("context_pool");
    change(options.pool);
    cases.push_back({name, options});
  };
  const auto mix = [&](const std::string& name, const nn::MixOptions& mixers) {
    auto options = small_options();
    options.mix = mixers;
    cases.push_back({"mix_" + name, options});
  };
  mix("canon_AC", {.places = "A=canon,C=canon"});
  mix("canon_ABCD", {.places = "ABCD=canon", .taps = 3});
  mix("dynamic_B", {.places = "B=dynamic", .rank = 3});
  mix("dynamic_O", {.places = "O=dynamic"});
  mix("dynamic_heads_AC", {.places = "AC=dynamic", .heads = 4});
  mix("canon_AC_pool_O", {.places = "AC=canon,O=context_pool"});
  for (const char* residual : {"plain", "scale", "gated"}) {
    mix(std::string("pool_AC_") + residual, {.places = "AC=context_pool", .residual = residual, .rank = 3});
    mix(std::string("depthwise_A_") + residual, {.places = "A=depthwise", .residual = residual});
  }
  mix("pool_A_taps", {.places = "A=context_pool", .residual = "scale", .pool_taps = 4});
  mix("pool_BD", {.places = "B=context_pool,D=context_pool"});
  pool("mlp", [](auto& o) { o.predictor = "mlp"; });
  pool("attention", [](auto& o) { o.predictor = "attention"; });
  for (const char* weights : {"unnormalized", "uniform", "nonlocal"}) {
    pool(weights, [&](auto& o) { o.weights = weights; });
  }
  for (const char* locality : {"none", "fixed_window", "adaptive_window", "random_sparse"}) {
    pool(std::string("locality_") + locality, [&](auto& o) { o.locality = locality; });
    pool(std::string("uniform_locality_") + locality, [&](auto& o) {
      o.weights = "uniform";
      o.locality = locality;
    });
  }
  pool("channels", [](auto& o) { o.size_norm = "channels"; });
  pool("groups", [](auto& o) { o.groups = 4; });
  pool("kernel", [](auto& o) { o.kernel = 4; });
  return cases;
}

// On the tests' device, in eval mode, every parameter random and large enough that each part of the model matters.
inline models::LanguageModel random_model(const models::LanguageModelOptions& options,
                                          torch::ScalarType type = torch::kFloat32) {
  models::LanguageModel model(options);
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

inline torch::Tensor random_tokens(int64_t batch, int64_t length) { return there(torch::randint(30, {batch, length})); }

}  // namespace contextpool::testing
