#include "contextpool/train/adamw.h"

#include <utility>

namespace contextpool::train {

AdamW::AdamW(const std::vector<Trainable>& parameters, OptimizerOptions options) : options_(std::move(options)) {
  TORCH_CHECK_VALUE(!parameters.empty(), "contextpool: AdamW without parameters");
  for (const auto& p : parameters) {
    entries_.push_back({p, torch::zeros_like(p.parameter).detach(), torch::zeros_like(p.parameter).detach()});
  }
  t_ = torch::zeros({}, torch::dtype(torch::kFloat).device(parameters.front().parameter.device()));
}

void AdamW::step_unless(const torch::Tensor& skip, const torch::Tensor& lr) {
  const torch::NoGradGuard no_grad;
  const auto found_infinite = skip.defined() ? std::optional(skip) : std::nullopt;
  t_.add_(1);
  update(true, found_infinite, lr);
  update(false, found_infinite, lr);
  if (skip.defined()) t_.sub_(skip);
}

void AdamW::update(bool decays, const std::optional<torch::Tensor>& skip, const torch::Tensor& lr) {
  std::vector<torch::Tensor> p, g, m, v;
  for (const auto& e : entries_) {
    if (!e.of.parameter.grad().defined() || e.of.decays != decays) continue;
    p.push_back(e.of.parameter);
    g.push_back(e.of.parameter.grad());
    m.push_back(e.m);
    v.push_back(e.v);
  }
  if (p.empty()) return;
  const std::vector<torch::Tensor> t(p.size(), t_);
  const auto run = [&](const auto& rate) {
    at::_fused_adamw_(p, g, m, v, /*max_exp_avg_sqs=*/{}, t, rate, options_.beta1, options_.beta2,
                      decays ? options_.weight_decay : 0, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
                      /*grad_scale=*/{}, skip);
  };
  lr.is_cpu() ? run(lr.item<double>()) : run(lr);
}

io::NamedTensors AdamW::state() const {
  io::NamedTensors all = {{"t", t_}};
  for (const auto& e : entries_) {
    all.emplace_back("m." + e.of.name, e.m);
    all.emplace_back("v." + e.of.name, e.v);
  }
  return all;
}

}  // namespace contextpool::train
