#include "contextpool/train/adamw.h"

namespace contextpool::train {
namespace {

std::vector<torch::Tensor> gradients(const io::NamedTensors& parameters) {
  std::vector<torch::Tensor> all;
  for (const auto& [name, p] : parameters) {
    if (p.grad().defined()) all.push_back(p.grad());
  }
  TORCH_CHECK(!all.empty(), "contextpool: no parameter has a gradient");
  return all;
}

}  // namespace

AdamW::AdamW(const io::NamedTensors& parameters, AdamWOptions options) : options_(options) {
  TORCH_CHECK_VALUE(!parameters.empty(), "contextpool: AdamW without parameters");
  for (const auto& [name, p] : parameters) {
    entries_.push_back({name, p, torch::zeros_like(p).detach(), torch::zeros_like(p).detach()});
  }
  t_ = torch::zeros({}, torch::dtype(torch::kFloat).device(entries_.front().parameter.device()));
}

void AdamW::step(double lr) {
  const torch::NoGradGuard no_grad;
  t_.add_(1);
  update(true, lr);
  update(false, lr);
}

void AdamW::update(bool decays, double lr) {
  std::vector<torch::Tensor> p, g, m, v;
  for (const auto& e : entries_) {
    if (!e.parameter.grad().defined() || (e.parameter.dim() >= 2) != decays) continue;
    p.push_back(e.parameter);
    g.push_back(e.parameter.grad());
    m.push_back(e.m);
    v.push_back(e.v);
  }
  if (p.empty()) return;
  const std::vector<torch::Tensor> t(p.size(), t_);
  at::_fused_adamw_(p, g, m, v, /*max_exp_avg_sqs=*/{}, t, lr, options_.beta1, options_.beta2,
                    decays ? options_.weight_decay : 0, options_.eps, /*amsgrad=*/false, /*maximize=*/false);
}

void AdamW::zero_grad() {
  for (auto& e : entries_) e.parameter.mutable_grad().reset();
}

io::NamedTensors AdamW::state() const {
  io::NamedTensors all = {{"t", t_}};
  for (const auto& e : entries_) {
    all.emplace_back("m." + e.name, e.m);
    all.emplace_back("v." + e.name, e.v);
  }
  return all;
}

torch::Tensor gradient_norm(const io::NamedTensors& parameters) {
  const torch::NoGradGuard no_grad;
  return torch::stack(at::_foreach_norm(gradients(parameters))).norm();
}

void scale_gradients(const io::NamedTensors& parameters, double factor) {
  const torch::NoGradGuard no_grad;
  const auto all = gradients(parameters);
  at::_foreach_mul_(all, factor);
}

}  // namespace contextpool::train
