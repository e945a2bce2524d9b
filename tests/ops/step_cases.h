// For tests of the operators of a training step: random tensors on the tests' device, errors against float64, and the
// gradients of a function.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "../device.h"

namespace contextpool::testing {

using torch::Tensor;

inline Tensor draw(torch::IntArrayRef sizes, torch::ScalarType type, double scale = 1) {
  return there((scale * torch::randn(sizes, torch::kFloat64)).to(type));
}

// Rounding of one value of a type, beside values of order 1.
inline double rounding(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat64: return 1e-15;
    case torch::kFloat32: return 1.2e-7;
    case torch::kHalf: return 1e-3;
    default: return 8e-3;
  }
}

// The largest error against the largest exact value.
inline double error_of(const Tensor& got, const Tensor& exact) {
  EXPECT_EQ(got.sizes(), exact.sizes());
  const auto want = exact.detach().to(torch::kCPU, torch::kFloat64);
  const auto gap = (got.detach().to(torch::kCPU, torch::kFloat64) - want).abs();
  EXPECT_TRUE(gap.isfinite().all().item<bool>());
  return want.numel() == 0 ? 0 : gap.max().item<double>() / std::max(1e-30, want.abs().max().item<double>());
}

// As leaves of that type (those already narrower stay as they are).
inline std::vector<Tensor> leaves(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> all;
  for (const auto& t : inputs) all.push_back(t.detach().clone().requires_grad_());
  return all;
}
inline std::vector<Tensor> float64_leaves(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> all;
  for (const auto& t : inputs) all.push_back(t.detach().to(torch::kFloat64).requires_grad_());
  return all;
}

// The results and the inputs' gradients, in this order, for given gradients of the results.
template <typename Function>
std::vector<Tensor> with_gradients(const std::vector<Tensor>& inputs, const std::vector<Tensor>& grads, Function f) {
  const std::vector<Tensor> results = f(inputs);
  std::vector<Tensor> out_grads;
  for (std::size_t i = 0; i < results.size(); ++i) out_grads.push_back(grads[i].to(results[i].scalar_type()));
  auto all = results;
  for (const auto& g : torch::autograd::grad(results, inputs, out_grads)) all.push_back(g);
  return all;
}

// `operator_` is at most twice as far from `exact` in float64 as PyTorch's own `composite` is, or within a few
// roundings of its result's type.
template <typename Operator, typename Composite>
void expect_as_accurate(const std::vector<Tensor>& inputs, const std::vector<Tensor>& grads, Operator operator_,
                        Composite composite) {
  const auto exact = with_gradients(float64_leaves(inputs), grads, composite);
  const auto got = with_gradients(leaves(inputs), grads, operator_);
  const auto peer = with_gradients(leaves(inputs), grads, composite);
  ASSERT_EQ(got.size(), exact.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE("result or gradient " + std::to_string(i));
    EXPECT_LE(error_of(got[i], exact[i]),
              std::max(2 * error_of(peer[i], exact[i]), 4 * rounding(got[i].scalar_type())));
  }
}

}  // namespace contextpool::testing
