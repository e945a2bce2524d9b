// AdamW (decoupled weight decay) by PyTorch's fused kernel, on the CPU and on a GPU:
//
//   m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,
//   p <- p - lr decay p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//
// State: m.<name>, v.<name> and the count of updates t.
#pragma once

#include "contextpool/train/optimizer.h"

namespace contextpool::train {

class AdamW : public Optimizer {
 public:
  AdamW(const std::vector<Trainable>& parameters, OptimizerOptions options);
  void step_unless(const torch::Tensor& skip, const torch::Tensor& lr) override;
  io::NamedTensors state() const override;

 private:
  struct Entry {
    Trainable of;
    torch::Tensor m, v;
  };
  void update(bool decays, const std::optional<torch::Tensor>& skip, const torch::Tensor& lr);

  std::vector<Entry> entries_;
  torch::Tensor t_;
  OptimizerOptions options_;
};

}  // namespace contextpool::train
