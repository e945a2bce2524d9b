// Every mixer, with every option that changes what it computes: causal rows, centred rows and maps.
#pragma once

#include <string>
#include <vector>

#include "../device.h"
#include "contextpool/nn/mixer.h"

namespace contextpool::testing {

inline constexpr int64_t kMixed = 8, kContext = 5;  // features of x and of the context

struct MixerCase {
  std::string name;
  nn::MixerOptions options;
  bool uses_context() const { return options.kind == "dynamic" || options.residual == "gated"; }
};

inline nn::MixerOptions mixer_options(const std::string& kind, int64_t dims, bool causal) {
  auto options = dims == 2 ? nn::MixerOptions::for_maps(kind, kMixed) : nn::MixerOptions{.kind = kind};
  options.features = kMixed;
  options.causal = causal;
  options.rank = 3;
  options.context_features = kContext;
  options.pool.reference_length = dims == 1 ? 20 : 0;
  options.pool.hidden = 5;
  options.pool.groups = 2;
  return options;
}

inline std::vector<MixerCase> mixer_cases(int64_t dims, bool causal) {
  std::vector<MixerCase> cases;
  const auto prefix = std::string(dims == 2 ? "map" : causal ? "causal" : "centred") + "_";
  const auto add = [&](const std::string& name, const nn::MixerOptions& options) {
    cases.push_back({prefix + name, options});
  };
  for (const auto* kind : {"none", "canon", "dynamic"}) add(kind, mixer_options(kind, dims, causal));
  auto five_taps = mixer_options("canon", dims, causal);
  five_taps.taps = 5;
  add("canon_5", five_taps);
  auto heads = mixer_options("dynamic", dims, causal);
  heads.heads = 4;
  add("dynamic_heads", heads);
  for (const auto* kind : {"depthwise", "context_pool"}) {
    for (const auto* residual : {"none", "plain", "scale", "gated"}) {
      auto options = mixer_options(kind, dims, causal);
      options.residual = residual;
      options.taps = std::string(kind) == "depthwise" && dims == 1 ? 5 : 0;
      add(std::string(kind) + "_" + residual, options);
      options.taps = 3;
      if (std::string(kind) == "context_pool") add(std::string("context_pool_taps_") + residual, options);
    }
  }
  return cases;
}

inline std::vector<MixerCase> all_mixer_cases() {
  std::vector<MixerCase> all;
  for (const auto& [dims, causal] : {std::pair{1, true}, std::pair{1, false}, std::pair{2, false}}) {
    for (auto& one : mixer_cases(dims, causal)) all.push_back(one);
  }
  return all;
}

// On the tests' device, every parameter random: fresh ones have zeros that would hide mistakes.
inline nn::Mixer random_mixer(const nn::MixerOptions& options, torch::ScalarType type = torch::kFloat64) {
  auto mixer = nn::make_mixer(options);
  mixer->to(device(), type);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : mixer->parameters()) {
    parameter.copy_(torch::randn(parameter.sizes(), torch::kFloat64) * 0.4);
  }
  return mixer;
}

// Random rows or maps of this many features.
inline torch::Tensor random_tokens_of(const nn::MixerOptions& options, int64_t features, int64_t batch = 2,
                                      torch::ScalarType type = torch::kFloat64) {
  const auto shape =
      options.dims == 1 ? std::vector<int64_t>{batch, 13, features} : std::vector<int64_t>{batch, features, 5, 6};
  return there(torch::randn(shape, torch::kFloat64).to(type));
}

}  // namespace contextpool::testing
