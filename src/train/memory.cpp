#include "contextpool/train/memory.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "contextpool/eval/device.h"
#include "contextpool/eval/model_file.h"

namespace contextpool::train {
namespace {

constexpr double kFloat = 4, kHalf = 2;  // bytes
constexpr double kGibi = 1024.0 * 1024 * 1024;

double size(std::int64_t n) { return static_cast<double>(n); }

double state_memory(const TrainOptions& options) {
  const double copies = options.ema > 0 ? 5 : 4;  // weight, gradient, m, v and the average
  return copies * kFloat * eval::least_parameters(options.model);
}

// Of the largest micro-batch: in each layer the inputs of both norms, q, k, v, attention's output and the feed-forward
// branch before and after its activation; at the end logits, their float32 copy and their gradient.
double activation_memory(const TrainOptions& options) {
  const auto& m = options.model;
  const auto element = options.bfloat16 ? kHalf : kFloat;
  const auto layer = 6 * size(m.features) + 2 * size(m.feedforward);
  const auto token = element * (size(m.layers) * layer + size(m.vocabulary)) + 2 * kFloat * size(m.vocabulary);
  double most = 0;
  for (const auto& stage : options.stages) {
    most = std::max(most, size(stage.batch) / size(options.accumulate) * size(stage.length) * token);
  }
  return most;
}

std::string in_gibi(double bytes) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.3g GiB", bytes / kGibi);
  return text.data();
}

}  // namespace

double least_memory(const TrainOptions& options) { return state_memory(options) + activation_memory(options); }

void check_memory(const TrainOptions& options, torch::Device device) {
  const auto there = size(eval::total_memory(device));
  const auto state = state_memory(options), activations = activation_memory(options);
  TORCH_CHECK_VALUE(there <= 0 || state + activations <= there, "contextpool: this run needs at least ",
                    in_gibi(state + activations), " of memory (", in_gibi(state), " for weights and optimizer, ",
                    in_gibi(activations), " for a micro-batch), but ", device.str(), " has ", in_gibi(there), "; ",
                    state > there ? "choose a smaller model"
                                  : "choose a smaller --batch or --length, or more micro-batches with --accumulate");
}

}  // namespace contextpool::train
