#include "contextpool/train/sgd.h"

#include <utility>

namespace contextpool::train {

Sgd::Sgd(const std::vector<Trainable>& parameters, OptimizerOptions options) : options_(std::move(options)) {
  for (const auto& p : parameters) {
    entries_.push_back({p, options_.momentum > 0 ? torch::zeros_like(p.parameter).detach() : torch::Tensor()});
  }
}

void Sgd::step_unless(const torch::Tensor& skip, const torch::Tensor& lr) {
  const torch::NoGradGuard no_grad;
  if (entries_.front().of.parameter.is_cuda()) {
    fused_step(skip, lr, /*decays=*/true);
    fused_step(skip, lr, /*decays=*/false);
  } else {
    step_by_operators(skip, lr.item<double>());
  }
}

// With momentum 0 a buffer is neither read nor written.
void Sgd::fused_step(const torch::Tensor& skip, const torch::Tensor& lr, bool decays) {
  std::vector<torch::Tensor> p, g, b;
  for (const auto& e : entries_) {
    if (!e.of.parameter.grad().defined() || e.of.decays != decays) continue;
    p.push_back(e.of.parameter);
    g.push_back(e.of.parameter.grad());
    if (e.b.defined()) b.push_back(e.b);
  }
  if (p.empty()) return;
  const auto run = [&](const auto& rate) {
    at::_fused_sgd_(p, g, b, decays ? options_.weight_decay : 0, options_.momentum, rate, /*dampening=*/0,
                    options_.nesterov, /*maximize=*/false, /*is_first_step=*/false, /*grad_scale=*/{},
                    skip.defined() ? std::optional(skip) : std::nullopt);
  };
  lr.is_cpu() ? run(lr.item<double>()) : run(lr);
}

void Sgd::step_by_operators(const torch::Tensor& skip, double lr) {
  const auto skips = skip.defined() ? skip > 0 : torch::Tensor();
  std::vector<torch::Tensor> p, g, b;
  for (const auto& e : entries_) {
    if (!e.of.parameter.grad().defined()) continue;
    p.push_back(e.of.parameter);
    // New tensors where gradients change: those of the parameters are left as they are.
    const bool decays = e.of.decays && options_.weight_decay > 0;
    g.push_back(decays ? e.of.parameter.grad().add(e.of.parameter, options_.weight_decay) : e.of.parameter.grad());
    if (skip.defined()) g.back() = torch::where(skips, 0, g.back());  // NaN times 0 would be NaN
    if (e.b.defined()) b.push_back(e.b);
  }
  if (p.empty()) return;
  if (b.empty()) {
    at::_foreach_add_(p, g, -lr);
    return;
  }
  if (skip.defined()) {
    const auto momentum =
        torch::where(skips, 1, torch::full({}, options_.momentum, skip.options().dtype(torch::kDouble)));
    at::_foreach_mul_(b, momentum.to(b.front().scalar_type()));
  } else {
    at::_foreach_mul_(b, options_.momentum);
  }
  at::_foreach_add_(b, g);
  const auto moves = skip.defined() ? at::_foreach_mul(b, skips.logical_not().to(b.front().scalar_type())) : b;
  if (options_.nesterov) {
    at::_foreach_add_(p, g, -lr);
    at::_foreach_add_(p, moves, -lr * options_.momentum);
  } else {
    at::_foreach_add_(p, moves, -lr);
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
