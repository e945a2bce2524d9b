// Comparing tensors in tests.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "../device.h"

namespace contextpool::testing {

// The largest difference, measured against the largest value expected (at least 1).
inline double difference(const torch::Tensor& got, const torch::Tensor& expected) {
  EXPECT_EQ(got.sizes(), expected.sizes());
  if (got.sizes() != expected.sizes() || got.numel() == 0) return 0;
  const auto want = expected.detach().to(torch::kCPU, torch::kFloat64);
  const auto scale = std::max(1.0, want.abs().max().item<double>());
  const auto gap = (got.detach().to(torch::kCPU, torch::kFloat64) - want).abs();
  EXPECT_TRUE(gap.isfinite().all().item<bool>());
  return gap.max().item<double>() / scale;
}

inline torch::Tensor random(torch::IntArrayRef sizes, torch::ScalarType type = torch::kFloat64) {
  return there(torch::randn(sizes, torch::kFloat64).to(type));
}

// The same bits on the CPU. On a GPU those of a gradient are not promised: PyTorch's attention and what it does where
// one element was read by many (expand, index, gather) may add up in any order there.
inline void expect_same_gradient(const torch::Tensor& got, const torch::Tensor& expected) {
  if (on_cpu()) {
    EXPECT_TRUE(torch::equal(got, expected));
  } else {
    EXPECT_LT(difference(got, expected), 1e-5);
  }
}

// forward([2, tokens, features]) of the tokens before each cut, and its gradient, is the same whatever follows.
template <typename Forward>
void expect_no_bit_of_the_future(const Forward& forward, int64_t tokens, int64_t features,
                                 const std::vector<int64_t>& cuts) {
  for (const int64_t t : cuts) {
    const auto x = random({2, tokens, features}, torch::kFloat32).requires_grad_();
    auto other = x.detach().clone();
    other.slice(1, t) = 5 * random({2, tokens - t, features}, torch::kFloat32);
    other.requires_grad_();
    const torch::Tensor past = forward(x).slice(1, 0, t), other_past = forward(other).slice(1, 0, t);
    EXPECT_TRUE(torch::equal(past, other_past)) << "cut " << t;
    const auto weight = random(past.sizes(), torch::kFloat32);
    const auto gradient = torch::autograd::grad({past}, {x}, {weight})[0];
    const auto other_gradient = torch::autograd::grad({other_past}, {other}, {weight})[0];
    EXPECT_TRUE((gradient.slice(1, t) == 0).all().item<bool>()) << "cut " << t;
    SCOPED_TRACE(t);
    expect_same_gradient(other_gradient, gradient);
  }
}

}  // namespace contextpool::testing
