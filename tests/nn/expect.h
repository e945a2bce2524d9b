// Comparing tensors in tests.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace contextpool::testing {

// The largest difference, measured against the largest value expected (at least 1).
inline double difference(const torch::Tensor& got, const torch::Tensor& expected) {
  EXPECT_EQ(got.sizes(), expected.sizes());
  if (got.sizes() != expected.sizes() || got.numel() == 0) return 0;
  const auto want = expected.detach().to(torch::kFloat64);
  const auto scale = std::max(1.0, want.abs().max().item<double>());
  const auto gap = (got.detach().to(torch::kFloat64) - want).abs();
  EXPECT_TRUE(gap.isfinite().all().item<bool>());
  return gap.max().item<double>() / scale;
}

inline torch::Tensor random(torch::IntArrayRef sizes, torch::ScalarType type = torch::kFloat64) {
  return torch::randn(sizes, torch::kFloat64).to(type);
}

}  // namespace contextpool::testing
