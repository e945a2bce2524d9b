#include "contextpool/train/sgd.h"

#include <utility>

namespace contextpool::train {

Sgd::Sgd(const std::vector<Trainable>& parameters, OptimizerOptions options) : options_(std::move(options)) {
  for (const auto& p : parameters) {
    entries_.push_back({p, options_.momentum > 0 ? torch::zeros_like(p.parameter).detach() : torch::Tensor()});
  }
}

void Sgd::step(double lr) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> p, g, b;
  for (const auto& e : entries_) {
    if (!e.of.parameter.grad().defined()) continue;
    p.push_back(e.of.parameter);
    // A new tensor where the gradient changes: those of the parameters are left as they are.
    const bool decays = e.of.decays && options_.weight_decay > 0;
    g.push_back(decays ? e.of.parameter.grad().add(e.of.parameter, options_.weight_decay) : e.of.parameter.grad());
    if (e.b.defined()) b.push_back(e.b);
  }
  if (p.empty()) return;
  if (b.empty()) {
    at::_foreach_add_(p, g, -lr);
    return;
  }
  at::_foreach_mul_(b, options_.momentum);
  at::_foreach_add_(b, g);
  if (options_.nesterov) {
    at::_foreach_add_(p, g, -lr);
    at::_foreach_add_(p, b, -lr * options_.momentum);
  } else {
    at::_foreach_add_(p, b, -lr);
  }
}

io::NamedTensors Sgd::state() const {
  io::NamedTensors all;
  for (const auto& e : entries_) {
    if (e.b.defined()) all.emplace_back("b." + e.of.name, e.b);
  }
  return all;
}

}  // namespace contextpool::train
