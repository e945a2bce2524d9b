#include "contextpool/train/optimizer.h"

#include <cmath>

#include "base/words.h"
#include "contextpool/train/adamw.h"
#include "contextpool/train/sgd.h"

namespace contextpool::train {
namespace {

std::vector<torch::Tensor> gradients(const std::vector<Trainable>& parameters) {
  std::vector<torch::Tensor> all;
  for (const auto& p : parameters) {
    if (p.parameter.grad().defined()) all.push_back(p.parameter.grad());
  }
  TORCH_CHECK(!all.empty(), "contextpool: no parameter has a gradient");
  return all;
}

}  // namespace

void validate(const OptimizerOptions& options) {
  const auto check = [](bool ok, const char* name, double value, const char* expected) {
    TORCH_CHECK_VALUE(ok && std::isfinite(value), "contextpool: ", name, " is ", value, ", expected ", expected);
  };
  const auto share = [](double x) { return x >= 0 && x < 1; };
  check_word("contextpool", "optimizer", options.kind, {"adamw", "sgd"});
  check(share(options.beta1), "beta1", options.beta1, "0 <= beta1 < 1");
  check(share(options.beta2), "beta2", options.beta2, "0 <= beta2 < 1");
  check(options.eps > 0, "eps", options.eps, "a positive number");
  check(share(options.momentum), "momentum", options.momentum, "0 <= momentum < 1");
  TORCH_CHECK_VALUE(options.kind != "sgd" || !options.nesterov || options.momentum > 0,
                    "contextpool: Nesterov's form needs a momentum above 0; --nesterov false is plain SGD");
  check(options.weight_decay >= 0, "weight-decay", options.weight_decay, "0 or more");
}

std::unique_ptr<Optimizer> make_optimizer(const std::vector<Trainable>& parameters, const OptimizerOptions& options) {
  validate(options);
  TORCH_CHECK_VALUE(!parameters.empty(), "contextpool: an optimizer without parameters");
  if (options.kind == "sgd") return std::make_unique<Sgd>(parameters, options);
  return std::make_unique<AdamW>(parameters, options);
}

double optimizer_copies(const OptimizerOptions& options) {
  if (options.kind == "sgd") return options.momentum > 0 ? 1 : 0;
  return 2;
}

void zero_gradients(const std::vector<Trainable>& parameters) {
  for (const auto& p : parameters) p.parameter.mutable_grad().reset();
}

torch::Tensor gradient_norm(const std::vector<Trainable>& parameters) {
  const torch::NoGradGuard no_grad;
  return torch::stack(at::_foreach_norm(gradients(parameters))).norm();
}

void scale_gradients(const std::vector<Trainable>& parameters, const torch::Tensor& factor) {
  const torch::NoGradGuard no_grad;
  const auto all = gradients(parameters);
  at::_foreach_mul_(all, factor.to(all.front().scalar_type()));
}

}  // namespace contextpool::train
