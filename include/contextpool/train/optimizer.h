// What turns gradients into updates. The trainer knows this interface; the optimizers are adamw.h and sgd.h.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "contextpool/io/safetensors.h"

namespace contextpool::train {

struct OptimizerOptions {
  std::string kind = "adamw";                    // adamw or sgd
  double beta1 = 0.9, beta2 = 0.98, eps = 1e-8;  // of AdamW
  double momentum = 0.9;                         // of SGD
  bool nesterov = true;                          // of SGD
  double weight_decay = 0.01;
};

// Throws at the first value that cannot be.
void validate(const OptimizerOptions& options);

struct Trainable {
  std::string name;
  torch::Tensor parameter;
  bool decays = false;  // whether weight decay is for it
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // One update with the gradients that are there; a parameter without one stays. Gradients are left as they are.
  void step(double lr) { step_unless({}, torch::scalar_tensor(lr, torch::kDouble)); }
  // The same, unless `skip`, a float tensor of no dimension on the parameters' device, is 1 and not 0: then parameters
  // and state keep their values, whatever the gradients hold. Nobody waits to see which. Undefined: 0. lr is of no
  // dimension, float64 on the CPU or float32 on the parameters' device, where it is read as late as the gradients.
  virtual void step_unless(const torch::Tensor& skip, const torch::Tensor& lr) = 0;
  // What a checkpoint keeps, sharing memory with this object. (Of a sharded one: sharded.h.)
  virtual io::NamedTensors state() const = 0;
  // The state from a checkpoint's file of that name.
  virtual void load(const io::NamedTensors& state, const std::string& file) {
    io::load_into(this->state(), state, file);
  }
};

std::unique_ptr<Optimizer> make_optimizer(const std::vector<Trainable>& parameters, const OptimizerOptions& options);

// Of a parameter's memory, the multiple that the optimizer keeps beside it.
double optimizer_copies(const OptimizerOptions& options);

// Gradients are forgotten, not set to 0.
void zero_gradients(const std::vector<Trainable>& parameters);
// The 2-norm of all gradients together, a tensor of one element on their device.
torch::Tensor gradient_norm(const std::vector<Trainable>& parameters);
// All gradients times `factor`, a tensor of no dimension on their device.
void scale_gradients(const std::vector<Trainable>& parameters, const torch::Tensor& factor);

}  // namespace contextpool::train
