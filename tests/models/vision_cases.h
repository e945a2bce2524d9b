// Small vision models in all their variety.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "contextpool/models/resnet.h"
#include "contextpool/models/swin.h"
#include "contextpool/models/vision_transformer.h"

namespace contextpool::testing {

template <typename Options>
Options small_vision_options();

template <>
inline models::VisionTransformerOptions small_vision_options() {
  models::VisionTransformerOptions options{
      .classes = 7, .image_size = 12, .patch = 2, .layers = 2, .features = 16, .heads = 2, .feedforward = 32};
  options.pool.hidden = 6;
  return options;
}

// A map of 11 x 11, 6 x 6 and 3 x 3: no multiple of the window, shifted, and smaller than it.
template <>
inline models::SwinOptions small_vision_options() {
  models::SwinOptions options{.classes = 7,
                              .image_size = 21,
                              .patch = 2,
                              .window = 4,
                              .depths = "2,2,1",
                              .features = 8,
                              .head_features = 4,
                              .feedforward_ratio = 2};
  options.pool.hidden = 6;
  return options;
}

template <>
inline models::ResNetOptions small_vision_options() {
  models::ResNetOptions options{.classes = 7, .image_size = 16, .depths = "1,2,1", .features = 8};
  options.pool.hidden = 6;
  return options;
}

template <typename Options>
using VisionCases = std::vector<std::pair<std::string, Options>>;

// Every mixer, then every option of ContextPool.
template <typename Options>
VisionCases<Options> mixer_cases() {
  VisionCases<Options> cases;
  const auto add = [&](const std::string& name, const std::string& mixer, const std::function<void(Options&)>& change) {
    auto options = small_vision_options<Options>();
    options.mixer = mixer;
    change(options);
    cases.emplace_back(name, options);
  };
  add("plain", "none", [](auto&) {});
  for (const char* mixer : {"context_pool", "depthwise"}) {
    add(mixer, mixer, [](auto&) {});
    add(std::string(mixer) + "_residual", mixer, [](auto& o) { o.mixer_residual = "plain"; });
  }
  for (const char* mixer : {"canon", "dynamic"}) add(mixer, mixer, [](auto&) {});
  for (const char* residual : {"scale", "gated"}) {
    add(residual, "context_pool", [&](auto& o) { o.mixer_residual = residual, o.mixer_rank = 3; });
  }
  add("taps", "context_pool", [](auto& o) { o.mixer_taps = 3; });
  add("mlp", "context_pool", [](auto& o) { o.pool.predictor = "mlp"; });
  for (const char* weights : {"unnormalized", "uniform", "nonlocal"}) {
    add(weights, "context_pool", [&](auto& o) { o.pool.weights = weights; });
  }
  for (const char* locality : {"none", "fixed_window", "adaptive_window", "random_sparse"}) {
    add(std::string("locality_") + locality, "context_pool", [&](auto& o) { o.pool.locality = locality; });
  }
  for (const char* norm : {"softmax", "channels"}) {
    add(std::string("sizes_") + norm, "context_pool", [&](auto& o) { o.pool.size_norm = norm; });
  }
  add("groups", "context_pool", [](auto& o) { o.pool.groups = 4; });
  add("paper", "context_pool", [](auto& o) { o.pool.size_range = 0; });
  return cases;
}

template <typename Options>
VisionCases<Options> vision_cases();

template <>
inline VisionCases<models::VisionTransformerOptions> vision_cases() {
  auto cases = mixer_cases<models::VisionTransformerOptions>();
  const auto add = [&](const std::string& name, const std::function<void(models::VisionTransformerOptions&)>& change) {
    auto options = small_vision_options<models::VisionTransformerOptions>();
    options.mixer = "context_pool";
    change(options);
    cases.emplace_back(name, options);
  };
  add("distilled", [](auto& o) { o.distilled = true; });
  for (const char* placement : {"after_block", "before_attention"}) {
    add(placement, [&](auto& o) { o.placement = placement; });
  }
  for (const char* mixer : {"context_pool", "depthwise", "dynamic"}) {
    add(std::string("row_") + mixer, [&](auto& o) { o.mixer = mixer, o.windows = "row"; });
  }
  add("mean", [](auto& o) { o.readout = "mean"; });
  return cases;
}

template <>
inline VisionCases<models::SwinOptions> vision_cases() {
  return mixer_cases<models::SwinOptions>();
}

template <>
inline VisionCases<models::ResNetOptions> vision_cases() {
  auto cases = mixer_cases<models::ResNetOptions>();
  const auto add = [&](const std::string& name, const std::function<void(models::ResNetOptions&)>& change) {
    auto options = small_vision_options<models::ResNetOptions>();
    change(options);
    cases.emplace_back(name, options);
  };
  for (const char* mixer : {"context_pool", "depthwise", "average"}) {
    add(std::string("stride_") + mixer, [&](auto& o) { o.mixer = mixer, o.pool_stride = 2; });
  }
  for (const char* block : {"basic", "bottleneck"}) {
    for (const char* mixer : {"none", "context_pool"}) {
      add(std::string(block) + "_" + mixer, [&](auto& o) {
        o.kind = "imagenet", o.block = block, o.depths = "1,2,1,1", o.mixer = mixer, o.image_size = 48;
      });
    }
  }
  add("bottleneck_stride", [](auto& o) {
    o.kind = "imagenet", o.block = "bottleneck", o.depths = "2,1", o.mixer = "context_pool", o.mixer_stages = 1;
    o.pool_stride = 2, o.image_size = 48;
  });
  return cases;
}

// In eval mode, every parameter and running statistic random and large enough that each part of the model matters.
inline void randomise(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  model.eval();
  for (auto& item : model.named_parameters()) {
    auto& parameter = item.value();
    const bool norm = parameter.dim() == 1 && item.key().ends_with("weight");
    const double deviation = parameter.dim() > 1 ? 0.7 / std::sqrt(static_cast<double>(parameter[0].numel())) : 0.2;
    parameter.copy_(torch::randn_like(parameter) * deviation + (norm ? 1 : 0));
  }
  for (auto& item : model.named_buffers()) {
    if (!item.value().is_floating_point()) continue;
    const bool variance = item.key().ends_with("var");
    item.value().copy_(variance ? torch::rand_like(item.value()) + 0.5 : torch::randn_like(item.value()) * 0.3);
  }
}

}  // namespace contextpool::testing
