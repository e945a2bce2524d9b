// Stochastic gradient descent with momentum, as torch.optim.SGD computes it, in a pass over all parameters at
// once on a GPU, in a few on a CPU:
//
//   g <- g + decay p,   b <- momentum b + g,   p <- p - lr (nesterov ? g + momentum b : b)
//
// State: b.<name> (none without momentum). It starts at 0, so that the first b is g, as in PyTorch.
#pragma once

#include "contextpool/train/optimizer.h"

namespace contextpool::train {

class Sgd : public Optimizer {
 public:
  Sgd(const std::vector<Trainable>& parameters, OptimizerOptions options);
  void step_unless(const torch::Tensor& skip, const torch::Tensor& lr) override;
  io::NamedTensors state() const override;

 private:
  struct Entry {
    Trainable of;
    torch::Tensor b;  // undefined without momentum
  };

  void fused_step(const torch::Tensor& skip, const torch::Tensor& lr, bool decays);
  void step_by_operators(const torch::Tensor& skip, double lr);

  std::vector<Entry> entries_;
  OptimizerOptions options_;
};

}  // namespace contextpool::train
