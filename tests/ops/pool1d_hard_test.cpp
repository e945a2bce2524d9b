// pool1d on rows where a scheme that merges sources would break first: weight contrast, the edge of the support, the
// causal cut, sums that nearly cancel.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "pool1d_cases.h"

namespace contextpool::testing {
namespace {

// Both directions, in float32 and float64 (half types are coarser), each with every algorithm.
class HardRow : public ::testing::TestWithParam<std::tuple<at::DeviceType, bool, Type>> {
 protected:
  static Case spec(std::int64_t tokens, std::int64_t channels) {
    const auto& [device, causal, type] = GetParam();
    Case c;
    c.tokens = c.targets = tokens;
    c.channels = channels;
    c.causal = causal;
    c.type = type;
    c.logits = Logits::equal;
    return c;
  }

  // The results, one for each algorithm, checked already. alike: targets of the same dy that see hardly anything but
  // one token, whose rounding adds up on a GPU where that token may not be the origin (docs/accuracy.md).
  static std::vector<Result> expect_right(Problem& p, double alike = 0) {
    round_inputs(p);
    auto expected = expected_of(p);
    if (std::get<0>(GetParam()) == at::kCUDA && p.spec.causal) {
      for (Expected& e : expected) e.dlog_weight_bound += alike * 1e-7 * scales_of(e.row).log_weight;
    }
    std::vector<Result> results;
    for (const auto algorithm : kAlgorithms) {
      SCOPED_TRACE(name(algorithm));
      p.spec.algorithm = algorithm;
      results.push_back(values_of(run(tensors_of(p, std::get<0>(GetParam())), p.spec)));
      expect_accurate(expected, results.back());
    }
    return results;
  }

  // Where the whole row has one size: targets on both sides meet whatever is in the middle at every distance.
  static constexpr std::array kSizes = {0.4, 1.0, 3.0, 7.99, 16.0, 33.0, 64.5, 1000.0};
};

TEST_P(HardRow, HeavyClusterIsSeenFromEveryDistanceUpToTheEdgeOfTheSupport) {
  for (const double sigma : kSizes) {
    for (const std::int64_t width : {1, 40}) {
      SCOPED_TRACE("sigma " + std::to_string(sigma) + ", cluster of " + std::to_string(width));
      Problem p = make_problem(spec(1000, 2));
      Random random(static_cast<std::uint64_t>(width));
      for (double& v : p.log_weight) v = random.uniform(-20, -19.5);
      std::fill_n(p.log_weight.begin() + 501, width, 20.0);
      std::fill(p.sigma.begin(), p.sigma.end(), sigma);
      expect_right(p);
    }
  }
}

TEST_P(HardRow, LightPatchAmongHeavyTokensIsNotDrownedByThem) {
  for (const double sigma : kSizes) {
    for (const std::int64_t width : {30, 400}) {
      SCOPED_TRACE("sigma " + std::to_string(sigma) + ", patch of " + std::to_string(width));
      Problem p = make_problem(spec(1000, 2));
      Random random(static_cast<std::uint64_t>(width));
      for (double& v : p.log_weight) v = random.uniform(19.5, 20);
      std::fill_n(p.log_weight.begin() + 310, width, -20.0);
      std::fill(p.sigma.begin(), p.sigma.end(), sigma);
      expect_right(p);
    }
  }
}

// Its part in every average is small, but every target has it: together they make up a gradient.
TEST_P(HardRow, LightTokenAloneFarFromHeavyOnesKeepsItsGradient) {
  Problem p = make_problem(spec(6144, 1));
  std::fill_n(p.log_weight.begin(), 4096, -kInf);
  std::fill(p.log_weight.begin() + 4096, p.log_weight.end(), 0);
  p.log_weight[100] = p.spec.type == Type::f32 ? -8 : -24;
  std::fill(p.sigma.begin(), p.sigma.end(), kInf);
  for (const auto m : p.visited) p.dy[static_cast<std::size_t>(m)] = 1;
  expect_right(p);
}

// The gradient of a weight is then a small difference, which must not drown in what the features have in common.
TEST_P(HardRow, LargeFeaturesThatDifferLittle) {
  if (std::get<2>(GetParam()) == Type::f64) GTEST_SKIP() << "the reference cancels too";
  for (const double sigma : {16.0, kInf}) {
    SCOPED_TRACE("sigma " + std::to_string(sigma));
    Case c = spec(1024, 8);
    c.logits = Logits::spread_5;
    Problem p = make_problem(c);
    for (double& v : p.x) v = 100 + 1e-3 * v;
    for (const auto m : p.visited) std::fill_n(p.dy.begin() + m * 8, 8, 1.0);
    std::fill(p.sigma.begin(), p.sigma.end(), sigma);
    expect_right(p);
  }
}

// The same of one token that outweighs the rest, wherever it is: its gradient is what a few targets see beside it.
TEST_P(HardRow, TokenThatIsNearlyAllThatThousandsOfTargetsSee) {
  if (std::get<2>(GetParam()) == Type::f64) GTEST_SKIP() << "the reference cancels too";
  constexpr std::int64_t kTokens = 4096, kChannels = 2;
  struct Row {
    std::size_t heavy;
    double weight;
    bool equal;  // all gradients are the same
  };
  for (const Row row : {Row{0, 40, true}, {1300, 12, true}, {1300, 12, false}, {1300, 40, true}, {1300, 40, false}}) {
    SCOPED_TRACE("token " + std::to_string(row.heavy) + " of weight " + std::to_string(row.weight) +
                 (row.equal ? ", gradients all the same" : ""));
    Problem p = make_problem(spec(kTokens, kChannels));
    std::fill(p.log_weight.begin(), p.log_weight.end(), 0);
    p.log_weight[row.heavy] = row.weight;
    std::fill(p.sigma.begin(), p.sigma.end(), kInf);
    p.visited.resize(kTokens);
    std::iota(p.visited.begin(), p.visited.end(), 0);
    Random random(1);
    for (double& v : p.dy) v = row.equal ? 1 : random.normal();
    expect_right(p, row.equal ? static_cast<double>(kTokens) - static_cast<double>(row.heavy) : 0);
  }
}

// What rounding leaves of the sum over the row, which is 0, is mostly of ordinary tokens here, not of the heavy one.
TEST_P(HardRow, HeavyTokenDoesNotTakeTheRoundingOfAllOthers) {
  if (std::get<2>(GetParam()) == Type::f64) GTEST_SKIP() << "the reference cancels too";
  Problem p = make_problem(spec(4096, 1));
  std::fill(p.log_weight.begin(), p.log_weight.end(), 0);
  p.log_weight[1365] = 30;
  p.x[0] = 10;
  std::fill(p.sigma.begin(), p.sigma.end(), 20);
  p.visited.resize(4096);
  std::iota(p.visited.begin(), p.visited.end(), 0);
  std::fill(p.dy.begin(), p.dy.end(), 1);
  expect_right(p, 150);
}

TEST_P(HardRow, OnlyTokenIsSeenFromFarWhateverItsWeight) {
  for (const double weight : {0.0, 1e6, 1e9, 1e11}) {
    SCOPED_TRACE(weight);
    Problem p = make_problem(spec(1000, 2));
    std::fill(p.log_weight.begin(), p.log_weight.end(), -kInf);
    p.log_weight[100] = weight;
    std::fill(p.sigma.begin(), p.sigma.end(), 40);
    expect_right(p);
  }
}

// Far beyond what the contract asks for: then the heaviest token in reach is the average.
TEST_P(HardRow, TokensOfAnyContrastGiveTheHeaviest) {
  for (const double heavy : {700.0, 720.0, 2000.0, 1e6, 1e30}) {
    SCOPED_TRACE(heavy);
    Problem p = make_problem(spec(1000, 2));
    std::fill(p.log_weight.begin(), p.log_weight.end(), 0);
    p.log_weight[503] = heavy;
    std::fill(p.sigma.begin(), p.sigma.end(), 1000);
    expect_right(p);
  }
}

// Soft masks: weights that float32 can only just hold, or not at all.
TEST_P(HardRow, TokensOfNextToNoWeight) {
  for (const double light : {-60.0, -69.0, -80.0, -90.0, -100.0}) {
    for (const double sigma : {3.0, 64.5}) {
      SCOPED_TRACE("weight " + std::to_string(light) + ", sigma " + std::to_string(sigma));
      Problem p = make_problem(spec(1000, 2));
      for (std::size_t j = 0; j < 1000; ++j) p.log_weight[j] = j / 7 % 2 == 0 ? light : 0;
      std::fill(p.sigma.begin(), p.sigma.end(), sigma);
      expect_right(p);
    }
  }
}

// Heavy tokens just inside and just outside each other's windows, sizes changing from token to token.
TEST_P(HardRow, ContrastOfFortyWithNeighbouringTargetsOfVeryDifferentSizes) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Problem p = make_problem(spec(2000, 2));
    Random random(seed);
    for (double& v : p.log_weight) v = random.below(150) == 0 ? 20 : random.uniform(-20, -15);
    for (double& v : p.sigma) v = random.log_uniform(0.3, 500);
    expect_right(p);
  }
}

// A light source near and a heavy one far out can weigh the same: then the exponents, large both, have to be right.
TEST_P(HardRow, BalanceOfALightNearAndAHeavyFarSource) {
  for (const double sigma : {2.0, 9.0, 47.0, 110.0}) {
    SCOPED_TRACE("sigma " + std::to_string(sigma));
    Problem p = make_problem(spec(3000, 1));
    std::fill(p.log_weight.begin(), p.log_weight.end(), -kInf);
    std::fill(p.x.begin(), p.x.end(), kNaN);
    const auto light = 1500;
    const auto heavy = light - static_cast<std::int64_t>(sigma * 3.5);
    p.log_weight[light] = -20, p.x[light] = 1;
    p.log_weight[static_cast<std::size_t>(heavy)] = 20, p.x[static_cast<std::size_t>(heavy)] = -1;
    std::fill(p.sigma.begin(), p.sigma.end(), sigma);
    expect_right(p);
  }
}

TEST_P(HardRow, SourcesJustInsideTheSupportAreAveragedAndJustOutsideDoNotExist) {
  constexpr std::int64_t kTokens = 3200;
  // Relative distance of sigma from the one whose edge is at t: far above the rounding of 160 sigma^2 in float32.
  constexpr double kMargin = 1e-5;
  for (const std::int64_t t : {1, 2, 5, 13, 40, 127, 128, 500, 1500}) {
    for (const bool inside : {true, false}) {
      SCOPED_TRACE("distance " + std::to_string(t) + (inside ? ", inside" : ", outside"));
      Problem p = make_problem(spec(kTokens, 2));
      std::fill(p.log_weight.begin(), p.log_weight.end(), -kInf);
      std::fill(p.x.begin(), p.x.end(), kNaN);
      for (const std::int64_t j : {1600, 1601}) {  // two sources next to each other, of different weight
        p.log_weight[static_cast<std::size_t>(j)] = j == 1600 ? 0 : 3;
        p.x[static_cast<std::size_t>(2 * j)] = j == 1600 ? 1 : -2;
        p.x[static_cast<std::size_t>(2 * j + 1)] = 0.5;
      }
      const double edge = static_cast<double>(t) / std::sqrt(160.0);
      std::fill(p.sigma.begin(), p.sigma.end(), edge * (inside ? 1 + kMargin : 1 - kMargin));
      for (const Result& got : expect_right(p)) {
        // The far one of the two, alone, at the very edge: x itself, or nothing at all.
        const auto far = static_cast<std::size_t>(1601 + t);
        EXPECT_NEAR(got.y[2 * far], inside ? -2 : 0, inside ? 2e-5 : 0);
        EXPECT_NEAR(got.y[2 * far + 1], inside ? 0.5 : 0, inside ? 1e-5 : 0);
        // Beyond it nothing exists, and nothing may be left of it in the gradient.
        EXPECT_EQ(got.y[2 * far + 2], 0);
        EXPECT_EQ(got.dsigma[far + 1], 0);
      }
    }
  }
}

TEST_P(HardRow, TargetsInALongGapOfPaddingAverageTheSourcesAtItsRims) {
  for (const double sigma : {3.0, 21.0, 60.0}) {
    SCOPED_TRACE("sigma " + std::to_string(sigma));
    Problem p = make_problem(spec(2500, 3));
    Random random(5);
    const auto gap = static_cast<std::int64_t>(24 * sigma);  // its middle is 12 sigma from either rim
    for (std::int64_t j = 0; j < 2500; ++j) {
      p.log_weight[static_cast<std::size_t>(j)] = random.uniform(-2, 2);
      if (j >= 700 && j < 700 + gap) p.log_weight[static_cast<std::size_t>(j)] = -kInf;
    }
    for (std::int64_t k = 0; k < gap * 3; ++k) p.x[static_cast<std::size_t>(700 * 3 + k)] = k % 2 == 0 ? kNaN : kInf;
    std::fill(p.sigma.begin(), p.sigma.end(), sigma);
    expect_right(p);
  }
}

std::string hard_name(const ::testing::TestParamInfo<HardRow::ParamType>& info) {
  const auto& [device, causal, type] = info.param;
  return name(device) + (causal ? "_causal_" : "_both_") + name(type);
}

INSTANTIATE_TEST_SUITE_P(All, HardRow,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Bool(),
                                            ::testing::Values(Type::f32, Type::f64)),
                         hard_name);

}  // namespace
}  // namespace contextpool::testing
