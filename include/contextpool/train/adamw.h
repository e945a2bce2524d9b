// AdamW (decoupled weight decay) by PyTorch's fused kernel, on the CPU and on a GPU:
//
//   m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,
//   p <- p - lr decay p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//
// Only parameters with two or more dimensions decay: matrices, embeddings and convolutions; biases and norms do not.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "contextpool/io/safetensors.h"

namespace contextpool::train {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.98, eps = 1e-8;
  double weight_decay = 0.01;
};

class AdamW {
 public:
  AdamW(const io::NamedTensors& parameters, AdamWOptions options);

  // One update with the gradients that are there; a parameter without one stays. Gradients are left as they are.
  void step(double lr);
  void zero_grad();

  // m.<name>, v.<name> and the count of updates t: what a checkpoint keeps, sharing memory with this object.
  io::NamedTensors state() const;

 private:
  struct Entry {
    std::string name;
    torch::Tensor parameter, m, v;
  };
  void update(bool decays, double lr);

  std::vector<Entry> entries_;
  torch::Tensor t_;
  AdamWOptions options_;
};

// The 2-norm of all gradients together, a tensor of one element on their device.
torch::Tensor gradient_norm(const io::NamedTensors& parameters);
// All gradients times `factor`.
void scale_gradients(const io::NamedTensors& parameters, double factor);

}  // namespace contextpool::train
