// What must not matter: the future to a causal module, to the bit, also through the predictor; the cache instead of the
// whole row; padding, the other rows of a batch, and their order.
#include "contextpool/nn/context_pool.h"

#include <gtest/gtest.h>

#include "context_pool_reference.h"
#include "expect.h"

namespace contextpool::testing {
namespace {

using nn::ContextPool1d;
using nn::ContextPool2d;
using nn::ContextPool2dOptions;
using nn::ContextPoolCache;
using nn::ContextPoolOptions;
using torch::Tensor;

constexpr const char* kLocalities[] = {"gaussian", "none", "fixed_window", "adaptive_window", "random_sparse"};
constexpr double kFloatTolerance = 5e-5;  // sums of float32 in another order, through exp

ContextPool1d scattered(const ContextPoolOptions& options) {
  auto pool = ContextPool1d(options);
  scatter(pool);
  pool->to(torch::kFloat);
  return pool;
}

std::vector<ContextPoolOptions> every_causal_option() {
  std::vector<ContextPoolOptions> all;
  for (const auto* locality : kLocalities) {
    for (const auto& options : every_option<ContextPoolOptions>(8, locality, /*causal=*/true)) all.push_back(options);
  }
  return all;
}

TEST(ContextPoolCausal, NoBitOfAnOutputOrGradientDependsOnLaterTokens) {
  for (const auto& options : every_causal_option()) {
    SCOPED_TRACE(words(options));
    torch::manual_seed(3);
    auto pool = scattered(options);
    const auto x = random({2, 40, 8}, torch::kFloat);
    for (const int64_t seen : {1, 17, 39}) {
      SCOPED_TRACE(seen);
      auto changed = x.clone();
      changed.slice(1, seen).normal_(0, 5);
      const auto run = [&](const Tensor& input) {
        const auto leaf = input.detach().clone().requires_grad_();
        const auto y = pool(leaf);
        auto dy = torch::ones_like(y);
        dy.slice(1, seen).zero_();
        std::vector<Tensor> all{y.slice(1, 0, seen).detach()};
        all.push_back(torch::autograd::grad({y}, {leaf}, {dy}, std::nullopt, false, true)[0].slice(1, 0, seen));
        return all;
      };
      const auto before = run(x), after = run(changed);
      EXPECT_TRUE(torch::equal(before[0], after[0])) << "outputs";
      expect_same_gradient(after[1], before[1]);
      const auto windows = pool->forward_with_windows(x).second, other = pool->forward_with_windows(changed).second;
      if (windows.sigma.defined()) {
        EXPECT_TRUE(torch::equal(windows.sigma.slice(-1, 0, seen), other.sigma.slice(-1, 0, seen)));
      }
    }
  }
}

TEST(ContextPoolCausal, LaterNaNsReachNoOneWhereTheOperatorPools) {
  for (const auto* locality : {"gaussian", "none"}) {
    auto pool = scattered({.features = 8, .locality = locality, .reference_length = 40, .causal = true});
    auto x = random({1, 40, 8}, torch::kFloat);
    const auto y = pool(x).slice(1, 0, 20);
    x.slice(1, 20).fill_(std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(torch::equal(pool(x).slice(1, 0, 20), y)) << locality;
  }
}

TEST(ContextPoolCausal, StepsGiveWhatTheWholeRowGives) {
  for (auto options : every_causal_option()) {
    for (const int64_t kernel : {1, 3, 4}) {
      options.kernel = kernel;
      SCOPED_TRACE(words(options) + " kernel " + std::to_string(kernel));
      torch::manual_seed(4);
      auto pool = scattered(options);
      const auto x = random({3, 70, 8}, torch::kFloat);  // more than a cache has room for at first
      ContextPoolCache cache;
      std::vector<Tensor> parts;
      for (const auto& piece : x.split_with_sizes({1, 1, 1, 9, 1, 30, 26, 1}, 1))
        parts.push_back(pool->step(piece, cache));
      EXPECT_EQ(cache.length(), 70);
      EXPECT_LT(difference(torch::cat(parts, 1), pool(x)), kFloatTolerance);
    }
  }
}

TEST(ContextPoolCausal, AReorderedCacheContinuesItsRows) {
  auto pool = scattered({.features = 8, .reference_length = 40, .causal = true});
  const auto x = random({3, 12, 8}, torch::kFloat);
  const auto rows = there(torch::tensor({2, 0, 0}));
  ContextPoolCache cache;
  pool->step(x.slice(1, 0, 10), cache);
  cache.reorder(rows);
  const auto y = pool->step(x.index_select(0, rows).slice(1, 10), cache);
  EXPECT_LT(difference(y, pool(x).index_select(0, rows).slice(1, 10)), kFloatTolerance);
  EXPECT_THROW(pool->step(x.slice(0, 0, 2), cache), c10::ValueError) << "another batch size";
}

std::vector<ContextPoolOptions> every_row_option() {
  auto all = every_causal_option();
  for (const auto* locality : kLocalities) {
    for (const auto& options : every_option<ContextPoolOptions>(8, locality, /*causal=*/false)) all.push_back(options);
  }
  return all;
}

// Rows by themselves and in a padded batch are sums of the same numbers, but matrix products of other shapes may take
// them in another order.
TEST(ContextPoolPadding, ChangesNothing) {
  for (const auto& options : every_row_option()) {
    SCOPED_TRACE(words(options));
    torch::manual_seed(5);
    auto pool = scattered(options);
    const auto x = random({3, 45, 8}, torch::kFloat);
    const auto lengths = there(torch::tensor({45, 20, 1}));
    auto batch = x.clone();
    batch[1].slice(0, 20).fill_(std::numeric_limits<float>::infinity());
    batch[2].slice(0, 1).fill_(std::numeric_limits<float>::quiet_NaN());
    const auto y = pool(batch, lengths);
    const auto mask = there(torch::arange(45)).unsqueeze(0) < lengths.unsqueeze(1);
    EXPECT_TRUE(torch::equal(y, pool(batch, mask))) << "lengths and mask";
    for (int64_t row = 0; row < 3; ++row) {
      const auto length = lengths[row].item<int64_t>();
      EXPECT_LT(difference(y[row].slice(0, 0, length), pool(x.slice(0, row, row + 1).slice(1, 0, length))[0]),
                kFloatTolerance);
      EXPECT_EQ(y[row].slice(0, length).abs().sum().item<float>(), 0);
    }
    // The same row padded in front.
    const auto late = torch::constant_pad_nd(x.slice(0, 0, 1).slice(1, 0, 20), {0, 0, 25, 0});
    const auto real = there(torch::arange(45)).unsqueeze(0) >= 25;
    EXPECT_LT(difference(pool(late, real)[0].slice(0, 25), pool(x.slice(0, 0, 1).slice(1, 0, 20))[0]), kFloatTolerance);
  }
}

TEST(ContextPoolPadding, OfNaNGivesFiniteGradientsOfZero) {
  for (const auto& options : every_row_option()) {
    SCOPED_TRACE(words(options));
    auto pool = scattered(options);
    auto x = random({2, 12, 8}, torch::kFloat);
    x[1].fill_(std::numeric_limits<float>::quiet_NaN());
    x[0].slice(0, 7).fill_(std::numeric_limits<float>::quiet_NaN());
    x.requires_grad_();
    pool(x, there(torch::tensor({7, 0}))).square().sum().backward();
    for (const auto& parameter : pool->parameters()) {
      EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
    }
    EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
    EXPECT_EQ(x.grad()[1].abs().sum().item<float>() + x.grad()[0].slice(0, 7).abs().sum().item<float>(), 0);
  }
}

// Within a tolerance: at another place of a batch, a matrix product may give a row other bits (MKL does on some CPUs).
TEST(ContextPoolBatch, OrderAndSizeChangeNothing) {
  for (const auto& options : every_row_option()) {
    SCOPED_TRACE(words(options));
    auto pool = scattered(options);
    const auto x = random({5, 33, 8}, torch::kFloat);
    const auto y = pool(x);
    const auto order = there(torch::tensor({3, 1, 4, 0, 2}));
    EXPECT_LT(difference(pool(x.index_select(0, order)), y.index_select(0, order)), kFloatTolerance);
    EXPECT_LT(difference(pool(x.slice(0, 3, 4)), y.slice(0, 3, 4)), kFloatTolerance);
  }
}

TEST(ContextPoolBatch, OfMapsChangesNothing) {
  for (const auto* locality : kLocalities) {
    for (auto options : every_option<ContextPool2dOptions>(8, locality, /*causal=*/false)) {
      SCOPED_TRACE(words(options));
      options.stride = {1, 2};
      auto pool = ContextPool2d(options);
      scatter(pool);
      pool->to(torch::kFloat);
      const auto x = random({3, 8, 6, 7}, torch::kFloat);
      const auto y = pool(x);
      EXPECT_LT(difference(pool(x.slice(0, 1, 2)), y.slice(0, 1, 2)), kFloatTolerance);
      EXPECT_LT(difference(pool(x.contiguous(torch::MemoryFormat::ChannelsLast)), y), kFloatTolerance);
      // The first map as part of a larger one.
      const auto padded = torch::constant_pad_nd(x, {0, 2, 0, 3}, std::numeric_limits<float>::quiet_NaN());
      const auto mask = torch::constant_pad_nd(there(torch::ones({3, 6, 7})), {0, 2, 0, 3}).to(torch::kBool);
      const auto got = pool(padded, mask);
      EXPECT_LT(difference(got.slice(2, 0, 6).slice(3, 0, 4), y), kFloatTolerance);
      EXPECT_EQ(got.slice(2, 6).abs().sum().item<float>(), 0);
    }
  }
}

}  // namespace
}  // namespace contextpool::testing
