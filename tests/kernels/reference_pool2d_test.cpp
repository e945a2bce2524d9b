// The float64 reference of pool2d is the formula: hand-computed cases, limits, agreement with pool1d on maps of one
// row, and gradients as differences of its own values.
#include "kernels/reference/pool2d.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/reference/pool1d.h"

namespace contextpool {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Gradients {
  std::vector<double> dx, dlog_weight, dsigma;
};

// A map that owns its numbers, of width `width` and one channel unless x says otherwise.
struct Map {
  std::int64_t width = 1;
  std::vector<double> x, log_weight, sigma;
  std::int64_t stride_h = 1, stride_w = 1;

  std::int64_t channels() const { return std::ssize(x) / std::ssize(log_weight); }
  reference::Pool2d arguments() const {
    return {std::ssize(log_weight) / width,
            width,
            stride_h,
            stride_w,
            channels(),
            x.data(),
            log_weight.data(),
            sigma.data()};
  }
  std::vector<double> pool(std::int64_t target) const {
    std::vector<double> y(static_cast<std::size_t>(channels()), kNaN);
    reference::pool2d(arguments(), target, y.data());
    return y;
  }
  Gradients backward(const std::vector<double>& dy) const {
    Gradients g{std::vector<double>(x.size()), std::vector<double>(log_weight.size()),
                std::vector<double>(sigma.size(), kNaN)};
    for (std::int64_t m = 0; m < std::ssize(sigma); ++m) {
      reference::pool2d_backward(arguments(), m, dy.data() + m * channels(), g.dx.data(), g.dlog_weight.data(),
                                 g.dsigma.data() + m);
    }
    return g;
  }
};

TEST(ReferencePool2d, FourPixelsByHand) {
  // Target (0, 0) of sigma 1 weighs its neighbours with e^(-1/2) and the pixel across with e^-1.
  const Map map{.width = 2, .x = {1, 2, 4, 8}, .log_weight = {0, 0, 0, 0}, .sigma = {1, 0, 0, kInf}};
  const double e = std::exp(-0.5);
  EXPECT_DOUBLE_EQ(map.pool(0)[0], (1 + 2 * e + 4 * e + 8 * e * e) / (1 + 2 * e + e * e));
  EXPECT_EQ(map.pool(1)[0], 2);
  EXPECT_DOUBLE_EQ(map.pool(3)[0], 15.0 / 4);
}

TEST(ReferencePool2d, StridePlacesTheTargets) {
  Map map{.width = 5, .x = {}, .log_weight = std::vector<double>(15), .sigma = std::vector<double>(6)};
  for (int k = 0; k < 15; ++k) map.x.push_back(k);
  map.stride_h = 2;
  map.stride_w = 2;  // rows 0 and 2, columns 0, 2 and 4
  const std::vector<double> want = {0, 2, 4, 10, 12, 14};
  for (std::int64_t m = 0; m < 6; ++m) EXPECT_EQ(map.pool(m)[0], want[static_cast<std::size_t>(m)]);
}

TEST(ReferencePool2d, MapOfOneRowOrColumnIsPool1d) {
  const std::vector<double> x = {1, -2, 4, 0.5, 3}, l = {0, 1, -1, 2, 0.5}, sigma = {0.3, 1, 2, 9, kInf};
  const auto& dy = x;
  const reference::Pool1d row{5, 5, 1, false, x.data(), l.data(), sigma.data()};
  Gradients want{std::vector<double>(5), std::vector<double>(5), std::vector<double>(5)};
  for (std::int64_t m = 0; m < 5; ++m) {
    reference::pool1d_backward(row, m, dy.data() + m, want.dx.data(), want.dlog_weight.data(), want.dsigma.data() + m);
  }
  for (const std::int64_t width : {1, 5}) {
    const Map map{.width = width, .x = x, .log_weight = l, .sigma = sigma};
    for (std::int64_t m = 0; m < 5; ++m) {
      double y = 0;
      reference::pool1d(row, m, &y);
      EXPECT_EQ(map.pool(m)[0], y);
    }
    const auto g = map.backward(dy);
    EXPECT_EQ(g.dx, want.dx);
    EXPECT_EQ(g.dlog_weight, want.dlog_weight);
    EXPECT_EQ(g.dsigma, want.dsigma);
  }
}

TEST(ReferencePool2d, MaskedPixelsDoNotExistAndNoSourceGivesZero) {
  const Map map{.width = 2, .x = {kNaN, 2, kInf, 6}, .log_weight = {-kInf, 0, -kInf, 0}, .sigma = {0, 50, kInf, -1}};
  EXPECT_EQ(map.pool(0)[0], 0);
  EXPECT_NEAR(map.pool(1)[0], 4, 1e-3);
  EXPECT_DOUBLE_EQ(map.pool(2)[0], 4);
  const auto g = map.backward({1, 1, 1, 1});
  EXPECT_EQ(g.dx[0], 0);
  EXPECT_EQ(g.dlog_weight[2], 0);
  EXPECT_EQ(g.dsigma[0], 0);
  for (const double v : g.dsigma) EXPECT_TRUE(std::isfinite(v));
}

TEST(ReferencePool2d, GradientsAreTheSlopesOfItsValues) {
  Map map{
      .width = 3, .x = {}, .log_weight = {0.1, -2, 3, -kInf, 0.7, 1.1, 0, 0, -1}, .sigma = {0.6, 2.5, 40, 0, 1, 0.9}};
  map.stride_w = 2;
  for (int k = 0; k < 18; ++k) map.x.push_back(std::sin(3.7 * k));
  std::vector<double> dy(12);
  for (int k = 0; k < 12; ++k) dy[static_cast<std::size_t>(k)] = std::cos(2.3 * k);
  const auto loss = [&] {
    double sum = 0;
    for (std::int64_t m = 0; m < 6; ++m) {
      const auto y = map.pool(m);
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
  const auto g = map.backward(dy);
  for (std::size_t k = 0; k < map.x.size(); ++k) EXPECT_NEAR(g.dx[k], slope(map.x[k]), 1e-9) << k;
  for (std::size_t k = 0; k < map.log_weight.size(); ++k) {
    EXPECT_NEAR(g.dlog_weight[k], slope(map.log_weight[k]), 1e-9) << k;
  }
  for (std::size_t k = 0; k < map.sigma.size(); ++k) EXPECT_NEAR(g.dsigma[k], slope(map.sigma[k]), 1e-8) << k;
}

}  // namespace
}  // namespace contextpool
