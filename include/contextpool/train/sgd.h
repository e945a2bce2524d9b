// Stochastic gradient descent with momentum, as torch.optim.SGD computes it, in a few passes over all parameters at
// once:
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
  void step_unless(const torch::Tensor& skip, double lr) override;
  io::NamedTensors state() const override;

 private:
  struct Entry {
    Trainable of;
    torch::Tensor b;  // undefined without momentum
  };

  std::vector<Entry> entries_;
  OptimizerOptions options_;
};

}  // namespace contextpool::train
