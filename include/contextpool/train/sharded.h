// An optimizer whose state is shared out over processes (ZeRO's first stage): each owns some of the parameters, keeps
// the state of those alone, updates them, and sends them to the others. Updates are those of the whole optimizer, bit
// for bit, since no optimizer here looks across parameters.
//
// Parameters go to owners by size, the largest first, each to the process with the least so far.
#pragma once

#include <vector>

#include "contextpool/runtime/processes.h"
#include "contextpool/train/optimizer.h"

namespace contextpool::train {

// The owner of each of some parameters of these sizes. Every one of `owners` has a parameter.
std::vector<int> share_out(const std::vector<std::int64_t>& sizes, int owners);

class ShardedOptimizer : public Optimizer {
 public:
  // Throws if there are fewer parameters than processes.
  ShardedOptimizer(const std::vector<Trainable>& parameters, const OptimizerOptions& options,
                   runtime::Processes& processes);

  void step_unless(const torch::Tensor& skip, const torch::Tensor& lr) override;
  // Collective. In the first process the state of the whole optimizer, with the names and in the order that it has
  // without sharding, on the CPU but for this process's own; in the others nothing.
  io::NamedTensors state() const override;
  void load(const io::NamedTensors& state, const std::string& file) override;

 private:
  std::vector<Trainable> parameters_;
  std::vector<int> owners_;
  runtime::Processes& processes_;
  std::unique_ptr<Optimizer> mine_;
  io::NamedTensors layout_;  // of the whole state, without memory
};

}  // namespace contextpool::train
