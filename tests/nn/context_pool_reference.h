// ContextPool by its formulas, for one row or map without padding, in float64 on the CPU: every pair of tokens, every
// group by itself, random places drawn number by number. Differentiable, so that gradients can be compared too.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../device.h"
#include "contextpool/nn/context_pool.h"

namespace contextpool::testing {

using Parameters = std::map<std::string, torch::Tensor>;

inline Parameters parameters_of(const torch::nn::Module& module) {
  Parameters parameters;
  for (const auto& item : module.named_parameters()) parameters[item.key()] = item.value();
  return parameters;
}

// Still parts of the graph that they come from.
inline Parameters to_cpu(const Parameters& parameters) {
  Parameters all;
  for (const auto& [name, value] : parameters) all[name] = value.to(torch::kCPU);
  return all;
}

// The predicted channels [channels, tokens] of x [1, D, N] or [1, C, H, W].
inline torch::Tensor reference_channels(const nn::ContextPoolOptions& o, const Parameters& p, const torch::Tensor& x) {
  const auto layer = [&](const torch::Tensor& in, const std::string& name) {
    auto weight = p.at("predictor." + name + ".weight");
    const auto& bias = p.at("predictor." + name + ".bias");
    while (weight.dim() < x.dim()) weight = weight.unsqueeze(-1);
    const auto reach = weight.size(-1) - 1;
    if (x.dim() == 4) return torch::conv2d(in, weight, bias, 1, reach / 2);
    return torch::conv1d(torch::constant_pad_nd(in, {o.causal ? reach : reach / 2, o.causal ? 0 : reach / 2}), weight,
                         bias);
  };
  const bool mlp = o.predictor == "mlp";
  const auto h = layer(x, mlp ? "fc1" : "conv1");
  return layer(h * 0.5 * (1 + torch::erf(h / std::sqrt(2.0))), mlp ? "fc2" : "conv2").flatten(2).squeeze(0);
}

inline uint32_t reference_hash(uint32_t v) {
  for (int round = 0; round < 2; ++round) v = (v ^ (v >> 16)) * 0x45d9f3bU;
  return v ^ (v >> 16);
}

inline bool reference_drawn(const nn::ContextPoolOptions& o, int64_t tokens, int64_t i, int64_t j) {
  std::set<int64_t> places{i};
  const auto layer = reference_hash(reference_hash(static_cast<uint32_t>(o.seed)) + static_cast<uint32_t>(o.layer));
  for (uint32_t k = 0; k < 8; ++k) {
    const auto drawn = reference_hash(reference_hash(layer + static_cast<uint32_t>(i)) + k);
    const auto choices = static_cast<double>(o.causal ? i + 1 : tokens);
    places.insert(static_cast<int64_t>(std::floor(static_cast<double>(drawn) / 4294967296.0 * choices)));
  }
  return places.count(j) > 0;
}

// features [N, D], the predicted channels [channels, N] (or undefined), where the tokens are, which are targets, and n.
inline torch::Tensor reference_pool(const nn::ContextPoolOptions& o, const Parameters& p, const torch::Tensor& features,
                                    const torch::Tensor& channels, const std::vector<std::pair<int64_t, int64_t>>& at,
                                    const std::vector<int64_t>& targets, double length) {
  const auto tokens = static_cast<int64_t>(at.size()), groups = o.groups, width = features.size(1) / groups;
  const bool pairwise = o.predictor == "attention" || o.weights == "nonlocal";
  const bool sized = o.locality == "gaussian" || o.locality == "adaptive_window";
  const auto n = o.reference_length > 0 ? static_cast<double>(o.reference_length) : length;
  std::vector<torch::Tensor> slices;
  for (int64_t group = 0; group < groups; ++group) {
    const auto x = features.slice(1, group * width, (group + 1) * width);
    torch::Tensor size;
    if (sized) {
      const auto b = channels.select(0, channels.size(0) - groups + group);
      if (o.size_norm == "sigmoid") size = o.ratio * n / (1 + (-b).exp());
      if (o.size_norm == "softmax") size = o.ratio * n * b.exp() / b.exp().sum();
      if (o.size_norm == "channels") size = o.ratio * n * b.exp() / (b.exp() + channels.select(0, group).exp());
      if (o.size_norm == "sigmoid" && o.size_range > 0) {
        const auto& biases = p.at(o.predictor == "mlp" ? "predictor.fc2.bias" : "predictor.conv2.bias");
        const auto learnt = biases[biases.size(0) - groups + group];
        const auto odds = (learnt + o.size_range * ((b - learnt) / o.size_range).tanh()).exp();
        const auto limit = std::max(o.ratio * n, 2 * o.initial_sigma);
        const auto least = o.initial_sigma * o.size_floor;
        size = least + (limit - least) * odds / (odds + (limit - o.initial_sigma) / (o.initial_sigma - least));
      }
    }
    std::vector<torch::Tensor> rows;
    for (const auto i : targets) {
      std::vector<torch::Tensor> factors;
      for (int64_t j = 0; j < tokens; ++j) {
        const auto t = std::hypot(static_cast<double>(at[i].first - at[j].first),
                                  static_cast<double>(at[i].second - at[j].second));
        auto g = torch::ones({}, torch::kDouble);
        if (o.locality == "gaussian") g = (-t * t / (2 * size[i] * size[i])).exp();
        if (o.locality == "fixed_window") g = g * (t <= o.window ? 1 : 0);
        if (o.locality == "adaptive_window") g = (1 + (size[i] - t) / 2).clamp(0, 1);
        if (o.locality == "random_sparse") g = g * (reference_drawn(o, tokens, i, j) ? 1 : 0);
        factors.push_back(o.causal && j > i ? torch::zeros({}, torch::kDouble) : g);
      }
      const auto g = torch::stack(factors);
      if (o.weights == "unnormalized") {
        rows.push_back(torch::matmul(channels[group] * g, x) / g.sum());
        continue;
      }
      auto w = torch::ones({tokens}, torch::kDouble);
      if (pairwise) {
        const auto query = torch::matmul(p.at("theta.weight"), features[i]);
        w = torch::matmul(torch::matmul(features, p.at("phi.weight").t()), query).exp();
      } else if (o.weights == "softmax") {
        w = channels[group].exp();
      }
      rows.push_back(torch::matmul(w * g, x) / (w * g).sum());
    }
    slices.push_back(torch::stack(rows));
  }
  return torch::cat(slices, 1);
}

// x [N, D] -> [N, D].
inline torch::Tensor reference_row(const nn::ContextPoolOptions& o, const Parameters& parameters,
                                   const torch::Tensor& features) {
  const auto p = to_cpu(parameters);
  const auto x = features.to(torch::kCPU);
  const auto channels = p.count("predictor.conv1.weight") + p.count("predictor.fc1.weight") > 0
                            ? reference_channels(o, p, x.t().unsqueeze(0))
                            : torch::Tensor();
  std::vector<std::pair<int64_t, int64_t>> at;
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < x.size(0); ++i) {
    at.emplace_back(0, i);
    targets.push_back(i);
  }
  return reference_pool(o, p, x, channels, at, targets, static_cast<double>(x.size(0)));
}

// x [C, H, W] -> [C, Ho, Wo].
inline torch::Tensor reference_map(const nn::ContextPool2dOptions& o, const Parameters& parameters,
                                   const torch::Tensor& features) {
  const auto p = to_cpu(parameters);
  const auto x = features.to(torch::kCPU);
  const auto channels = p.count("predictor.conv1.weight") + p.count("predictor.fc1.weight") > 0
                            ? reference_channels(o, p, x.unsqueeze(0))
                            : torch::Tensor();
  const auto height = x.size(1), width = x.size(2);
  std::vector<std::pair<int64_t, int64_t>> at;
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < height; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      if (i % o.stride[0] == 0 && j % o.stride[1] == 0) targets.push_back(static_cast<int64_t>(at.size()));
      at.emplace_back(i, j);
    }
  }
  const auto y = reference_pool(o, p, x.flatten(1).t(), channels, at, targets, static_cast<double>(height + width) / 2);
  return y.t().unflatten(1, {(height + o.stride[0] - 1) / o.stride[0], (width + o.stride[1] - 1) / o.stride[1]});
}

// Every combination of options that can be built, with sizes large enough to matter in short rows.
template <typename Options>
std::vector<Options> every_option(int64_t features, const std::string& locality, bool causal) {
  std::vector<Options> all;
  for (const auto* predictor : {"conv", "mlp", "attention"}) {
    for (const auto* weights : {"softmax", "unnormalized", "uniform", "nonlocal"}) {
      for (const auto* size_norm : {"sigmoid", "softmax", "channels"}) {
        for (const auto& [groups, size_range] : {std::pair{1, 2.0}, {2, 0.5}, {2, 0.0}}) {
          Options o;
          o.features = features;
          o.predictor = predictor;
          o.weights = weights;
          o.locality = locality;
          o.size_norm = size_norm;
          o.groups = groups;
          o.ratio = 0.4;
          o.initial_sigma = 2;
          o.size_range = size_range;
          o.size_floor = groups == 1 ? o.size_floor : 0.2;
          o.hidden = 5;
          o.window = 2.5;
          o.seed = 7;
          o.layer = 3;
          o.causal = causal;
          o.reference_length = causal ? 20 : 0;
          try {
            validate(o);
          } catch (const c10::ValueError&) {
            continue;
          }
          all.push_back(o);
        }
      }
    }
  }
  return all;
}

inline std::string words(const nn::ContextPoolOptions& o) {
  return o.predictor + " " + o.weights + " " + o.locality + " " + o.size_norm + " groups " + std::to_string(o.groups) +
         (o.size_range > 0 ? " bounded" : "") + (o.causal ? " causal" : "");
}

// Parameters away from their start, in float64 on the tests' device, so that every one of them has a say.
template <typename Module>
void scatter(Module& module) {
  const torch::NoGradGuard no_grad;
  module->to(torch::kDouble);
  module->to(device());
  for (auto& parameter : module->parameters()) parameter.normal_(0, 0.4);
}

}  // namespace contextpool::testing
