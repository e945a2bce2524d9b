#include "contextpool/train/memory.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "contextpool/runtime/device.h"

namespace contextpool::train {
namespace {

constexpr double kFloat = 4;  // bytes
constexpr double kGibi = 1024.0 * 1024 * 1024;

double size(std::int64_t n) { return static_cast<double>(n); }

double state_memory(const TrainOptions& options, const models::Family& family, const OptionList& model_options) {
  // Weight, gradient, what the optimizer keeps, and the average.
  const auto sharers = options.shard_optimizer ? size(options.processes) : 1;
  const double copies = 2 + optimizer_copies(options.optimizer) / sharers + (options.ema > 0 ? 1 : 0);
  return copies * kFloat * family.least_parameters(model_options);
}

// Of the largest micro-batch.
double activation_memory(const TrainOptions& options, const tasks::TaskKind& kind, const OptionList& model_options) {
  double most = 0;
  for (const auto& stage : options.stages) {
    const auto rows = size(stage.batch) / size(parts(options));
    most = std::max(most, kind.least_activations(model_options, stage.length, rows, options.bfloat16));
  }
  return most;
}

std::string in_gibi(double bytes) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.3g GiB", bytes / kGibi);
  return text.data();
}

}  // namespace

double least_memory(const TrainOptions& options, const tasks::TaskKind& kind, const models::Family& family,
                    const OptionList& model_options) {
  return state_memory(options, family, model_options) + activation_memory(options, kind, model_options);
}

void check_memory(const TrainOptions& options, const tasks::TaskKind& kind, const models::Family& family,
                  const OptionList& model_options, torch::Device device) {
  const auto there = size(runtime::total_memory(device));
  const auto state = state_memory(options, family, model_options);
  const auto activations = activation_memory(options, kind, model_options);
  TORCH_CHECK_VALUE(there <= 0 || state + activations <= there, "contextpool: this run needs at least ",
                    in_gibi(state + activations), " of memory (", in_gibi(state), " for weights and optimizer, ",
                    in_gibi(activations), " for a micro-batch), but ", device.str(), " has ", in_gibi(there), "; ",
                    state > there ? "choose a smaller model"
                                  : "choose a smaller --batch or --length, or more micro-batches with --accumulate");
}

}  // namespace contextpool::train
