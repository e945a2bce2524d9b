#include "contextpool/nn/window_statistics.h"

#include <gtest/gtest.h>

namespace {

using contextpool::nn::ContextPoolOptions;
using contextpool::nn::window_statistics;
using contextpool::nn::Windows;

constexpr double kWide = 1e9;

TEST(WindowStatistics, AWideWindowHoldsAllTokensOfEqualWeight) {
  const Windows windows{torch::zeros({2, 9}), torch::full({2, 9}, kWide)};
  const auto both = window_statistics(ContextPoolOptions{.features = 4}, windows);
  ASSERT_TRUE(both.has_value());
  EXPECT_NEAR(both->tokens, 9, 1e-9);
  const auto past =
      window_statistics(ContextPoolOptions{.features = 4, .reference_length = 9, .causal = true}, windows);
  EXPECT_NEAR(past->tokens, 5, 1e-9);  // 1, 2, ..., 9
}

TEST(WindowStatistics, AClosedWindowHoldsItsOwnToken) {
  for (const double sigma : {0.0, 0.01}) {
    const auto found = window_statistics(ContextPoolOptions{.features = 4},
                                         {torch::randn({2, 3, 50}), torch::full({2, 3, 50}, sigma)});
    EXPECT_NEAR(found->tokens, 1, 1e-9);
    EXPECT_NEAR(found->sigma, sigma, 1e-9);
  }
}

TEST(WindowStatistics, OneHeavyTokenIsAllThatCounts) {
  auto log_weight = torch::zeros({1, 40});
  log_weight[0][7] = 60;
  const auto found = window_statistics(ContextPoolOptions{.features = 4}, {log_weight, torch::full({1, 40}, kWide)});
  EXPECT_NEAR(found->tokens, 1, 1e-9);
  EXPECT_NEAR(found->log_weight_spread, 60 * std::sqrt(39.0) / 40, 1e-5);
}

TEST(WindowStatistics, SpreadIsBetweenTheTokensOfARow) {
  const auto sigma = torch::tensor({{1.0, 3.0}, {11.0, 13.0}});
  const auto found = window_statistics(ContextPoolOptions{.features = 4}, {torch::zeros({2, 2}), sigma});
  EXPECT_NEAR(found->sigma, 7, 1e-6);
  EXPECT_NEAR(found->sigma_spread, 1, 1e-6);
}

TEST(WindowStatistics, ALongRowIsSampled) {
  const auto found =
      window_statistics(ContextPoolOptions{.features = 4}, {torch::zeros({1, 5000}), torch::full({1, 5000}, 10.0)});
  EXPECT_NEAR(found->tokens, 2 * std::sqrt(M_PI) * 10, 0.5);  // of a Gaussian, but for the ends of the row
}

// Of a Gaussian in the plane, 4 pi sigma^2 pixels, but for the edges of the map.
TEST(WindowStatistics, AMapCountsPixelsInThePlane) {
  for (const bool groups : {false, true}) {
    const std::vector<int64_t> shape = groups ? std::vector<int64_t>{1, 2, 64, 64} : std::vector<int64_t>{1, 64, 64};
    const auto found = window_statistics(ContextPoolOptions{.features = 4},
                                         {torch::zeros(shape), torch::full(shape, 2.0)}, /*dims=*/2);
    EXPECT_NEAR(found->tokens, 4 * M_PI * 4, 4);
    EXPECT_NEAR(found->sigma, 2, 1e-6);
  }
}

// Heavy pixels in columns 0 and 2: targets on columns 0, 2 and 4 are near to one of them; targets on columns 0, 1 and 2
// would have one that is as near to both.
TEST(WindowStatistics, TargetsOfAStrideSitOnEverySecondPixel) {
  auto log_weight = torch::zeros({1, 5, 5});
  log_weight[0][0][0] = 60;
  log_weight[0][0][2] = 60;
  const auto found = window_statistics(ContextPoolOptions{.features = 4}, {log_weight, torch::full({1, 3, 3}, 0.7)}, 2);
  EXPECT_NEAR(found->tokens, 1, 0.05);
}

TEST(WindowStatistics, FormsWithoutSuchWindowsHaveNone) {
  const Windows windows{torch::zeros({1, 4}), torch::ones({1, 4})};
  EXPECT_FALSE(window_statistics(ContextPoolOptions{.features = 4, .locality = "adaptive_window"}, windows));
  EXPECT_FALSE(window_statistics(ContextPoolOptions{.features = 4, .weights = "unnormalized"}, windows));
  EXPECT_FALSE(window_statistics(ContextPoolOptions{.features = 4}, {}));
}

}  // namespace
