// The float64 reference is the formula: hand-computed cases, limits, and gradients as differences of its own values.
#include "kernels/reference/pool1d.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace contextpool {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Gradients {
  std::vector<double> dx, dlog_weight, dsigma;
};

// A row that owns its numbers. x is [tokens, channels], the other sizes follow from the vectors.
struct Row {
  std::vector<double> x, log_weight, sigma;
  bool causal = false;

  std::int64_t tokens() const { return std::ssize(log_weight); }
  std::int64_t targets() const { return std::ssize(sigma); }
  std::int64_t channels() const { return std::ssize(x) / tokens(); }
  reference::Pool1d arguments() const {
    return {tokens(), targets(), channels(), causal, x.data(), log_weight.data(), sigma.data()};
  }

  std::vector<double> pool(std::int64_t target) const {
    std::vector<double> y(static_cast<std::size_t>(channels()), kNaN);
    reference::pool1d(arguments(), target, y.data());
    return y;
  }

  // Of sum over targets of dy . y, dy [targets, channels].
  Gradients backward(const std::vector<double>& dy) const {
    Gradients g{std::vector<double>(x.size()), std::vector<double>(log_weight.size()),
                std::vector<double>(sigma.size(), kNaN)};
    for (std::int64_t m = 0; m < targets(); ++m) {
      reference::pool1d_backward(arguments(), m, dy.data() + m * channels(), g.dx.data(), g.dlog_weight.data(),
                                 g.dsigma.data() + m);
    }
    return g;
  }
};

TEST(ReferencePool1d, OneTokenIsItself) {
  const Row row{.x = {3, -4}, .log_weight = {-7}, .sigma = {2}};
  EXPECT_EQ(row.pool(0), (std::vector<double>{3, -4}));
}

TEST(ReferencePool1d, TwoTokensByHand) {
  // Target 0 weighs token 0 with 1 and token 1 with e^(-1/2); target 1, of sigma 2, token 0 with e^(-1/8).
  const Row row{.x = {1, 5}, .log_weight = {0, 0}, .sigma = {1, 2}};
  EXPECT_DOUBLE_EQ(row.pool(0)[0], (1 + 5 * 0.60653065971263342) / 1.60653065971263342);
  EXPECT_DOUBLE_EQ(row.pool(1)[0], (5 + 0.88249690258459546) / 1.88249690258459546);
}

TEST(ReferencePool1d, ThreeTokensWithWeightsByHand) {
  // Weights 2, 1, 4 around target 1 of sigma 1/2: 2 e^-2, 1, 4 e^-2.
  const Row row{.x = {10, 20, 40}, .log_weight = {std::log(2), 0, std::log(4)}, .sigma = {0.5, 0.5, 0.5}};
  const double e = 0.13533528323661270;
  EXPECT_DOUBLE_EQ(row.pool(1)[0], (10 * 2 * e + 20 + 40 * 4 * e) / (2 * e + 1 + 4 * e));
  // From target 0 token 2 is two steps away: e^-8.
  const double e8 = 3.3546262790251185e-4;
  EXPECT_DOUBLE_EQ(row.pool(0)[0], (10 * 2 + 20 * e + 40 * 4 * e8) / (2 + e + 4 * e8));
}

TEST(ReferencePool1d, TargetsAreTheLastPositions) {
  const Row row{.x = {1, 2, 3, 4, 5}, .log_weight = {0, 0, 0, 0, 0}, .sigma = {0, 0}};
  EXPECT_EQ(row.pool(0)[0], 4);
  EXPECT_EQ(row.pool(1)[0], 5);
}

TEST(ReferencePool1d, CausalTargetsSeeNothingLater) {
  Row row{.x = {1, 2, 100}, .log_weight = {0, 0, 50}, .sigma = {kInf, kInf, kInf}, .causal = true};
  EXPECT_EQ(row.pool(0)[0], 1);
  EXPECT_DOUBLE_EQ(row.pool(1)[0], 1.5);
  row.x[2] = kNaN;
  row.log_weight[2] = kInf;
  row.sigma[2] = kNaN;
  EXPECT_DOUBLE_EQ(row.pool(1)[0], 1.5);
}

TEST(ReferencePool1d, SupportEndsWhereDistanceSquaredExceeds160SigmaSquared) {
  // A single live source, 4 away; sqrt(160) = 12.649...
  Row row{.x = {7, kNaN, kNaN, kNaN, kNaN}, .log_weight = {0, -kInf, -kInf, -kInf, -kInf}, .sigma = {1}};
  for (const double margin : {1e-12, 1e-9, 1e-3}) {
    row.sigma[0] = 4 / std::sqrt(160.0) * (1 + margin);
    EXPECT_DOUBLE_EQ(row.pool(0)[0], 7);
    row.sigma[0] = 4 / std::sqrt(160.0) * (1 - margin);
    EXPECT_EQ(row.pool(0)[0], 0);
  }
}

TEST(ReferencePool1d, SourcesAtTheEdgeAreWeighedAgainstEachOther) {
  // Live sources 12 before and 11 before a target of sigma 1: e^-72 and e^-60.5, with e^11.5 more weight on the first.
  Row row;
  row.x.assign(13, kNaN);
  row.log_weight.assign(13, -kInf);
  row.x[0] = 1, row.x[1] = 3;
  row.log_weight[0] = 11.5, row.log_weight[1] = 0;
  row.sigma = {1};
  EXPECT_NEAR(row.pool(0)[0], 2, 1e-13);
}

TEST(ReferencePool1d, MaskedTokensDoNotExistWhateverTheyHold) {
  for (const double poison : {kNaN, kInf, -kInf, 1e308}) {
    const Row row{.x = {1, poison, 3}, .log_weight = {0, -kInf, 0}, .sigma = {9, kInf, 9}};
    EXPECT_DOUBLE_EQ(row.pool(1)[0], 2);
    const auto g = row.backward({1, 1, 1});
    EXPECT_EQ(g.dx[1], 0);
    EXPECT_EQ(g.dlog_weight[1], 0);
    for (const double v : g.dlog_weight) EXPECT_TRUE(std::isfinite(v));
    for (const double v : g.dsigma) EXPECT_TRUE(std::isfinite(v));
  }
}

TEST(ReferencePool1d, WithoutAnySourceEverythingIsZero) {
  // All masked; and a target of sigma 0 whose own token is masked.
  for (const double sigma : {5.0, 0.0, -1.0, kInf}) {
    const Row row{.x = {kNaN, kInf}, .log_weight = {-kInf, -kInf}, .sigma = {sigma, sigma}};
    EXPECT_EQ(row.pool(0)[0], 0);
    const auto g = row.backward({1, 1});
    EXPECT_EQ(g.dx, (std::vector<double>{0, 0}));
    EXPECT_EQ(g.dlog_weight, (std::vector<double>{0, 0}));
    EXPECT_EQ(g.dsigma, (std::vector<double>{0, 0}));
  }
  const Row row{.x = {2, 3}, .log_weight = {-kInf, 0}, .sigma = {0, 0}};
  EXPECT_EQ(row.pool(0)[0], 0);
  EXPECT_EQ(row.pool(1)[0], 3);
}

TEST(ReferencePool1d, SmallSizesAreTheIdentityWithFiniteGradients) {
  for (const double sigma : {0.0, -0.0, -1.0, -kInf, 1e-300, 1e-30, 1e-6, 0.07}) {
    const Row row{.x = {1, 20, 300}, .log_weight = {5, -5, 0}, .sigma = {sigma, sigma, sigma}};
    EXPECT_EQ(row.pool(1)[0], 20) << sigma;
    const auto g = row.backward({1, 2, 3});
    EXPECT_EQ(g.dx, (std::vector<double>{1, 2, 3})) << sigma;
    EXPECT_EQ(g.dlog_weight, (std::vector<double>{0, 0, 0})) << sigma;
    EXPECT_EQ(g.dsigma, (std::vector<double>{0, 0, 0})) << sigma;
  }
}

TEST(ReferencePool1d, LargeSizesAreTheWeightedMeanWithFiniteGradients) {
  for (const double sigma : {1e9, 1e30, 1e160, 1e300, kInf}) {
    const Row row{.x = {1, 2, 6}, .log_weight = {0, std::log(2), std::log(3)}, .sigma = {sigma, sigma, sigma}};
    for (const int m : {0, 1, 2}) EXPECT_NEAR(row.pool(m)[0], (1 + 4 + 18) / 6.0, 1e-14) << sigma;
    const auto g = row.backward({6, 0, 0});
    EXPECT_NEAR(g.dx[2], 3, 1e-14) << sigma;
    for (const double v : g.dsigma) EXPECT_NEAR(v, 0, 1e-20) << sigma;
  }
}

TEST(ReferencePool1d, CommonFactorOfTheWeightsCancels) {
  Row row{.x = {1, -2, 4}, .log_weight = {0.5, -1.25, 0}, .sigma = {1, 1, 1}};
  const double y = row.pool(1)[0];
  for (const double offset : {1e4, -1e4, 0x1p20, -0x1p20}) {
    Row moved = row;
    for (double& v : moved.log_weight) v += offset;
    EXPECT_NEAR(moved.pool(1)[0], y, 1e-15) << offset;
  }
}

TEST(ReferencePool1d, NaNSurfacesWhereItIsUsedAndOnlyThere) {
  const Row size{.x = {1, 2, 3}, .log_weight = {0, 0, 0}, .sigma = {1, kNaN, 1}};
  EXPECT_TRUE(std::isnan(size.pool(1)[0]));
  EXPECT_FALSE(std::isnan(size.pool(0)[0]));
  const Row feature{.x = {1, 2, 3, kNaN}, .log_weight = {0, 0, 0, 0}, .sigma = {0.2, 0.2, 0.2, 0.2}};
  EXPECT_TRUE(std::isnan(feature.pool(2)[0]));
  EXPECT_TRUE(std::isnan(feature.pool(3)[0]));
  EXPECT_FALSE(std::isnan(feature.pool(0)[0]));
}

TEST(ReferencePool1d, GradientsOfTwoTokensByHand) {
  // One target at position 1 of sigma s: p0 = q, p1 = 1 - q with logit(q) = l0 - l1 - 1 / (2 s^2), so
  // dl0 = q (1-q) (x0 - x1) = -dl1, and dsigma = dl0 / s^3.
  const double s = 1.5;
  const Row row{.x = {2, 7}, .log_weight = {0.3, -0.4}, .sigma = {s}};
  const double q = 1 / (1 + std::exp(-(0.7 - 1 / (2 * s * s))));
  const auto g = row.backward({1});
  EXPECT_NEAR(g.dx[0], q, 1e-15);
  EXPECT_NEAR(g.dx[1], 1 - q, 1e-15);
  EXPECT_NEAR(g.dlog_weight[0], q * (1 - q) * (2 - 7), 1e-14);
  EXPECT_NEAR(g.dlog_weight[1], -q * (1 - q) * (2 - 7), 1e-14);
  EXPECT_NEAR(g.dsigma[0], q * (1 - q) * (2 - 7) / (s * s * s), 1e-14);
}

TEST(ReferencePool1d, BackwardAddsToTheGradientsOfSourcesAndStoresThatOfTheSize) {
  const Row row{.x = {2, 7}, .log_weight = {0, 0}, .sigma = {1}};
  const double dy = 1;
  std::vector<double> dx = {10, 20}, dlog_weight = {30, 40};
  double dsigma = 50;
  reference::pool1d_backward(row.arguments(), 0, &dy, dx.data(), dlog_weight.data(), &dsigma);
  const auto g = row.backward({1});
  EXPECT_DOUBLE_EQ(dx[0], 10 + g.dx[0]);
  EXPECT_DOUBLE_EQ(dlog_weight[1], 40 + g.dlog_weight[1]);
  EXPECT_DOUBLE_EQ(dsigma, g.dsigma[0]);
}

// Every derivative as a central difference of the reference's own values.
TEST(ReferencePool1d, GradientsAreTheSlopesOfItsValues) {
  for (const bool causal : {false, true}) {
    Row row{.x = {}, .log_weight = {0.1, -2, 3, -kInf, 0.7, 1.1}, .sigma = {0.6, 2.5, 40, 0}, .causal = causal};
    for (int k = 0; k < 12; ++k) row.x.push_back(std::sin(3.7 * k));
    std::vector<double> dy(8);
    for (std::size_t k = 0; k < dy.size(); ++k) dy[k] = std::cos(2.3 * static_cast<double>(k));
    const auto loss = [&] {
      double sum = 0;
      for (std::int64_t m = 0; m < row.targets(); ++m) {
        const auto y = row.pool(m);
        for (std::size_t d = 0; d < y.size(); ++d) sum += dy[static_cast<std::size_t>(m) * y.size() + d] * y[d];
      }
      return sum;
    };
    const auto slope = [&](double& v) {
      constexpr double kStep = 1e-5;
      const double at = v;
      v = at + kStep;
      const double above = loss();
      v = at - kStep;
      const double below = loss();
      v = at;
      return (above - below) / (2 * kStep);
    };
    const auto g = row.backward(dy);
    for (std::size_t k = 0; k < row.x.size(); ++k) EXPECT_NEAR(g.dx[k], slope(row.x[k]), 1e-9) << k;
    for (std::size_t k = 0; k < row.log_weight.size(); ++k) {
      EXPECT_NEAR(g.dlog_weight[k], slope(row.log_weight[k]), 1e-9) << k;
    }
    for (std::size_t k = 0; k < row.sigma.size(); ++k) EXPECT_NEAR(g.dsigma[k], slope(row.sigma[k]), 1e-9) << k;
  }
}

}  // namespace
}  // namespace contextpool
