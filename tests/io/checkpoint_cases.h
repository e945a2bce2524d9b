// Checkpoints that differ by their step, and whether one was loaded bit-identical.
#pragma once

#include <torch/torch.h>

#include <set>
#include <string>

#include "contextpool/io/checkpoint.h"
#include "io_cases.h"

namespace contextpool::io::testing {

inline Checkpoint make_checkpoint(std::int64_t step, bool ema = false) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step) + 1);
  const auto draw = [&](at::IntArrayRef shape) { return torch::randn(shape, generator); };
  Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.model = {{"layer.weight", draw({5, 7})}, {"layer.bias", draw({5}).to(torch::kBFloat16)}};
  checkpoint.optimizer = {{"layer.weight.exp_avg", draw({5, 7})}, {"layer.weight.step", torch::tensor(step)}};
  if (ema) checkpoint.ema = {{"layer.weight", draw({5, 7})}};
  checkpoint.state = "{\"step\": " + std::to_string(step) + "}\n";
  checkpoint.metadata = {{"model", "tiny"}};
  return checkpoint;
}

inline bool same(const NamedTensors& a, const NamedTensors& b) {
  std::map<std::string, torch::Tensor> of_b(b.begin(), b.end());
  if (a.size() != of_b.size()) return false;
  return std::all_of(a.begin(), a.end(), [&](const auto& item) {
    const auto at = of_b.find(item.first);
    return at != of_b.end() && at->second.scalar_type() == item.second.scalar_type() &&
           torch::equal(at->second, item.second);
  });
}

inline bool same(const Checkpoint& a, const Checkpoint& b) {
  return a.step == b.step && same(a.model, b.model) && same(a.optimizer, b.optimizer) && same(a.ema, b.ema) &&
         a.state == b.state && a.metadata == b.metadata;
}

inline bool is_whole(const std::filesystem::path& run, const Checkpoint& want) {
  return same(load_checkpoint(checkpoint_folder(run, want.step)), want);
}

inline std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace contextpool::io::testing
