// What holds of every module with steps: a left-padded batch, decoded piece by piece, gives what the whole pass gives,
// gradients included, and a cache can be cropped, its rows chosen and repeated, and copied.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "contextpool/nn/padding.h"
#include "expect.h"

namespace contextpool::testing {

inline constexpr double kStepTolerance = 1e-11;  // of float64

// Four rows of 30 tokens, padded in front: [4, 30].
inline torch::Tensor left_padded() {
  return there(torch::arange(30).unsqueeze(0) >= 30 - torch::tensor({30, 17, 3, 1}).unsqueeze(1));
}

// Of y [B, T, n] the outputs at real tokens, [count, n].
inline torch::Tensor at_real(const torch::Tensor& y, const torch::Tensor& mask) { return y.index({mask}); }

template <typename Cache>
struct Stepper {
  std::function<torch::Tensor(const torch::Tensor&, const nn::Padding&)> forward;
  std::function<torch::Tensor(const torch::Tensor&, Cache&, const nn::Padding&)> step;

  torch::Tensor steps(const torch::Tensor& x, const torch::Tensor& mask, Cache& cache) const {
    std::vector<torch::Tensor> parts;
    int64_t first = 0;
    for (const int64_t count : {9, 8, 1, 1, 11}) {  // the second row begins inside of the second piece
      const auto part = mask.narrow(1, first, count);
      parts.push_back(step(x.narrow(1, first, count), cache, first == 9 ? part.to(torch::kLong) : part));
      first += count;
    }
    return torch::cat(parts, 1);
  }
};

// x [4, 30, ...]: features or symbols.
template <typename Cache>
void expect_left_padded_steps(const Stepper<Cache>& module, const torch::Tensor& x) {
  const torch::NoGradGuard no_grad;
  const auto mask = left_padded();
  const auto whole = module.forward(x, mask);
  Cache cache;
  EXPECT_LT(difference(at_real(module.steps(x, mask, cache), mask), at_real(whole, mask)), kStepTolerance);
  EXPECT_EQ(cache.length(), 30);
  const auto other_polarity = module.forward(x, nn::Padding::key_padding_mask(mask.logical_not()));
  EXPECT_TRUE(torch::equal(at_real(other_polarity, mask), at_real(whole, mask)));
}

template <typename Cache>
void expect_each_row_alone(const Stepper<Cache>& module, const torch::Tensor& x) {
  const torch::NoGradGuard no_grad;
  const auto mask = left_padded();
  Cache cache;
  const auto y = module.steps(x, mask, cache);
  for (int64_t row = 0; row < 4; ++row) {
    const auto length = mask[row].sum().item<int64_t>();
    const auto alone = module.forward(x.slice(0, row, row + 1).slice(1, 30 - length), {});
    EXPECT_LT(difference(y[row].slice(0, 30 - length), alone[0]), kStepTolerance) << "row " << row;
  }
}

template <typename Cache>
void expect_gradients_through_steps(const Stepper<Cache>& module, const torch::Tensor& x,
                                    const std::vector<torch::Tensor>& leaves) {
  const auto mask = left_padded();
  const auto gradients = [&](const torch::Tensor& y) {
    return torch::autograd::grad({at_real(y, mask).square().sum()}, leaves, {}, std::nullopt, false, true);
  };
  const auto expected = gradients(module.forward(x, mask));
  Cache cache;
  const auto got = gradients(module.steps(x, mask, cache));
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined());
    if (got[i].defined()) {
      EXPECT_LT(difference(got[i], expected[i]), 1e-9);
    }
  }
}

template <typename Cache>
void expect_caches_to_be_changed(const Stepper<Cache>& module, const torch::Tensor& x) {
  const torch::NoGradGuard no_grad;
  const auto mask = left_padded(), whole = module.forward(x, mask);
  const auto seen = [&] {
    Cache cache;
    module.step(x.slice(1, 0, 20), cache, mask.slice(1, 0, 20));
    return cache;
  };
  const auto expect_rest = [&](Cache& cache, const torch::Tensor& chosen) {
    const auto rows = there(chosen);
    const auto rest = mask.index_select(0, rows).slice(1, 20);
    EXPECT_EQ(cache.rows(), rows.size(0));
    const auto y = module.step(x.index_select(0, rows).slice(1, 20), cache, rest);
    const auto expected = whole.index_select(0, rows).slice(1, 20);
    EXPECT_LT(difference(at_real(y, rest), at_real(expected, rest)), kStepTolerance);
  };
  auto cache = seen();
  auto copy = cache;
  module.step(x.flip({0}).slice(1, 20, 27), cache, {});
  cache.crop(20);
  EXPECT_EQ(cache.length(), 20);
  expect_rest(cache, torch::arange(4));
  expect_rest(copy, torch::arange(4));
  cache = seen();
  cache.reorder(there(torch::tensor({3, 0, 0, 1})));
  expect_rest(cache, torch::tensor({3, 0, 0, 1}));
  cache = seen();
  cache.select(there(torch::tensor({true, false, true, true})));
  expect_rest(cache, torch::tensor({0, 2, 3}));
  cache = seen();
  cache.repeat(3);
  expect_rest(cache, torch::arange(4).repeat_interleave(3));
  EXPECT_THROW(module.step(x.slice(1, 20), cache, {}), c10::ValueError) << "another batch size";
  EXPECT_THROW(cache.crop(31), c10::ValueError);
  EXPECT_THROW(cache.repeat(0), c10::ValueError);
}

// A step without gradients must not write into what an earlier graph holds.
template <typename Cache>
void expect_graphs_to_survive(const Stepper<Cache>& module, const torch::Tensor& x) {
  Cache cache;
  const auto first = module.step(x.slice(1, 0, 12), cache, {});
  cache.crop(8);
  {
    const torch::NoGradGuard no_grad;
    module.step(x.slice(1, 8), cache, {});
  }
  first.sum().backward();
}

template <typename Cache>
void expect_steps(const Stepper<Cache>& module, const torch::Tensor& x, const std::vector<torch::Tensor>& leaves,
                  bool alone = true) {
  expect_left_padded_steps(module, x);
  if (alone) expect_each_row_alone(module, x);
  expect_gradients_through_steps(module, x, leaves);
  expect_caches_to_be_changed(module, x);
  expect_graphs_to_survive(module, x);
}

}  // namespace contextpool::testing
