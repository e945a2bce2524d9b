// pool2d on maps where a window that drops sources, or a sum that nearly cancels, would break first.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <tuple>

#include "pool2d_cases.h"

namespace contextpool::testing {
namespace {

// In float32 and float64 (half types are coarser), each with every algorithm.
class HardMap : public ::testing::TestWithParam<std::tuple<at::DeviceType, Type>> {
 protected:
  static Case2d spec(std::int64_t height, std::int64_t width) {
    Case2d c;
    c.height = height;
    c.width = width;
    c.channels = 2;
    c.type = std::get<1>(GetParam());
    c.logits = Logits::equal;
    return c;
  }

  static Result result(const Problem2d& p) {
    return map_values_of(run2d(tensors_of(p, std::get<0>(GetParam())), {1, 1}, name(p.spec.algorithm)));
  }

  static void expect_right_by_all(Problem2d& p) {
    round_inputs(p);
    for (const auto algorithm : kMapAlgorithms) {
      SCOPED_TRACE(name(algorithm));
      p.spec.algorithm = algorithm;
      expect_accurate(p, result(p));
    }
  }

  static constexpr std::array kSizes = {0.4, 1.0, 2.8, 7.99, 30.0};
};

TEST_P(HardMap, HeavyPatchIsSeenFromEveryDistanceUpToTheEdgeOfTheSupport) {
  for (const double sigma : kSizes) {
    for (const std::int64_t side : {1, 4}) {
      SCOPED_TRACE("sigma " + std::to_string(sigma) + ", patch of " + std::to_string(side));
      Problem2d p = make_problem(spec(41, 37));
      Random random(static_cast<std::uint64_t>(side));
      for (double& v : p.log_weight) v = random.uniform(-20, -19.5);
      for (std::int64_t i = 0; i < side; ++i) {
        std::fill_n(p.log_weight.begin() + (20 + i) * 37 + 11, side, 20.0);
      }
      std::fill(p.sigma.begin(), p.sigma.end(), sigma);
      expect_right_by_all(p);
    }
  }
}

TEST_P(HardMap, LightPatchAmongHeavyPixelsIsNotDrownedByThem) {
  for (const double sigma : kSizes) {
    SCOPED_TRACE("sigma " + std::to_string(sigma));
    Problem2d p = make_problem(spec(41, 37));
    Random random(3);
    for (double& v : p.log_weight) v = random.uniform(19.5, 20);
    for (std::int64_t i = 8; i < 30; ++i) std::fill_n(p.log_weight.begin() + i * 37 + 9, 20, -20.0);
    std::fill(p.sigma.begin(), p.sigma.end(), sigma);
    expect_right_by_all(p);
  }
}

// The gradient of a weight is then a small difference, which must not drown in what the features have in common.
TEST_P(HardMap, LargeFeaturesThatDifferLittle) {
  if (std::get<1>(GetParam()) == Type::f64) GTEST_SKIP() << "the reference cancels too";
  for (const double sigma : {2.8, kInf}) {
    SCOPED_TRACE("sigma " + std::to_string(sigma));
    Case2d c = spec(32, 32);
    c.logits = Logits::spread_5;
    Problem2d p = make_problem(c);
    for (double& v : p.x) v = 100 + 1e-3 * v;
    for (const auto m : p.visited) std::fill_n(p.dy.begin() + m * 2, 2, 1.0);
    std::fill(p.sigma.begin(), p.sigma.end(), sigma);
    expect_right_by_all(p);
  }
}

// The same of one pixel that outweighs the rest: its gradient is what the targets see beside it.
TEST_P(HardMap, PixelThatIsNearlyAllThatAThousandTargetsSee) {
  if (std::get<1>(GetParam()) == Type::f64) GTEST_SKIP() << "the reference cancels too";
  for (const double weight : {12.0, 20.0, 40.0}) {
    for (const bool equal : {true, false}) {
      SCOPED_TRACE("weight " + std::to_string(weight) + (equal ? ", gradients all the same" : ""));
      Problem2d p = make_problem(spec(32, 32));
      std::fill(p.log_weight.begin(), p.log_weight.end(), 0);
      p.log_weight[11 * 32 + 20] = weight;
      std::fill(p.sigma.begin(), p.sigma.end(), kInf);
      p.visited.resize(32 * 32);
      std::iota(p.visited.begin(), p.visited.end(), 0);
      Random random(1);
      for (double& v : p.dy) v = equal ? 1 : random.normal();
      expect_right_by_all(p);
    }
  }
}

// Soft masks: weights that float32 can only just hold, or not at all.
TEST_P(HardMap, PixelsOfNextToNoWeight) {
  for (const double light : {-60.0, -69.0, -80.0, -90.0, -100.0}) {
    SCOPED_TRACE("weight " + std::to_string(light));
    Problem2d p = make_problem(spec(20, 25));
    for (std::size_t j = 0; j < 500; ++j) p.log_weight[j] = j / 7 % 2 == 0 ? light : 0;
    std::fill(p.sigma.begin(), p.sigma.end(), 2.8);
    expect_right_by_all(p);
  }
}

// What the gradient of sigma is made of lies far out: next to nothing in the sum of weights, but all of the second
// moment.
TEST_P(HardMap, SizeOfAHeavyTargetHasItsGradientFromAHeavyPixelFarAway) {
  for (const double sigma : kSizes) {
    for (const double distance : {0.0, 7.5, 9.5, 12.0}) {
      SCOPED_TRACE("sigma " + std::to_string(sigma) + ", distance " + std::to_string(distance));
      Problem2d p = make_problem(spec(33, 61));
      Random random(4);
      for (double& v : p.log_weight) v = random.uniform(-20, -18);
      p.visited = {16 * 61 + 10};
      p.log_weight[16 * 61 + 10] = 20;
      p.log_weight[static_cast<std::size_t>(16 * 61 + std::min(60L, 10 + std::lround(distance * sigma)))] = 20;
      std::fill(p.sigma.begin(), p.sigma.end(), sigma);
      std::fill(p.dy.begin(), p.dy.end(), 0.0);
      p.dy[static_cast<std::size_t>(p.visited[0] * 2)] = 1;
      expect_right_by_all(p);
    }
  }
}

TEST_P(HardMap, TargetsInAHoleOfPaddingAverageTheSourcesAtItsRim) {
  for (const double sigma : {1.0, 2.0}) {
    SCOPED_TRACE("sigma " + std::to_string(sigma));
    Problem2d p = make_problem(spec(61, 61));
    for (std::int64_t j = 0; j < 61 * 61; ++j) {
      const std::int64_t i = j / 61;
      const auto di = static_cast<double>(i - 30), dj = static_cast<double>(j % 61 - 30);
      if (di * di + dj * dj >= 150 * sigma * sigma) continue;  // its middle is 12.2 sigma from the rim
      p.log_weight[static_cast<std::size_t>(j)] = -kInf;
      std::fill_n(p.x.begin() + j * 2, 2, j % 2 == 0 ? kNaN : kInf);
    }
    std::fill(p.sigma.begin(), p.sigma.end(), sigma);
    p.visited = {30 * 61 + 30, 30 * 61 + 31, 0};
    Random random(9);
    std::fill(p.dy.begin(), p.dy.end(), 0.0);
    for (const auto m : p.visited) {
      for (int d = 0; d < 2; ++d) p.dy[static_cast<std::size_t>(m * 2 + d)] = random.normal();
    }
    expect_right_by_all(p);
  }
}

TEST_P(HardMap, SupportEndsWhereDistanceSquaredExceeds160SigmaSquared) {
  // One live source, (3, 4) away from the target: at the edge when sigma is 5 / sqrt(160).
  Problem2d p = make_problem(spec(8, 8));
  std::fill(p.log_weight.begin(), p.log_weight.end(), -kInf);
  p.log_weight[4 * 8 + 5] = 0;
  for (const double margin : {1e-3, -1e-3}) {
    std::fill(p.sigma.begin(), p.sigma.end(), 5 / std::sqrt(160.0) * (1 + margin));
    expect_right_by_all(p);
    const double y = result(p).y[(1 * 8 + 1) * 2];
    const double x = p.x[(4 * 8 + 5) * 2];
    const bool rounds = std::get<0>(GetParam()) == at::kCUDA && margin > 0;  // x times its weight, over that weight
    EXPECT_NEAR(y, margin > 0 ? x : 0, rounds ? 1e-6 * std::abs(x) : 0);
  }
}

std::string hard_name(const ::testing::TestParamInfo<HardMap::ParamType>& info) {
  return name(std::get<0>(info.param)) + "_" + name(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, HardMap,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(Type::f32, Type::f64)),
                         hard_name);

}  // namespace
}  // namespace contextpool::testing
