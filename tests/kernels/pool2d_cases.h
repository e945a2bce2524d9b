// What pool2d is tried on: one list of maps, strides, dtypes, orders, windows, weights and masks, in which every pair
// of choices occurs together, the numbers that belong to a case, and the accuracy contract as one check. Free of torch,
// so that kernels and operators share it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "kernels/cpu/pool2d.h"
#include "kernels/reference/pool2d.h"
#include "pool1d_cases.h"
#include "pool1d_check.h"

namespace contextpool::testing {

struct Case2d {
  std::int64_t batch = 1;
  std::int64_t height = 1;
  std::int64_t width = 1;
  std::int64_t stride_h = 1;
  std::int64_t stride_w = 1;
  std::int64_t channels = 1;
  Type type = Type::f32;
  Algorithm algorithm = Algorithm::automatic;
  Sizes sizes = Sizes::mixed;
  Logits logits = Logits::spread_1;
  Mask mask = Mask::none;
  bool channels_last = false;

  std::int64_t out_height() const { return (height + stride_h - 1) / stride_h; }
  std::int64_t out_width() const { return (width + stride_w - 1) / stride_w; }
  std::int64_t pixels() const { return height * width; }
  std::int64_t targets() const { return out_height() * out_width(); }
};

inline std::string name(const Case2d& c) {
  const auto number = [](const char* key, std::int64_t v) { return key + std::to_string(v) + "_"; };
  return number("b", c.batch) + number("h", c.height) + number("w", c.width) + number("s", c.stride_h) +
         number("x", c.stride_w) + number("c", c.channels) + name(c.type) + "_" + name(c.algorithm) + "_" +
         name(c.sizes) + "_" + name(c.logits) + "_" + name(c.mask) + (c.channels_last ? "_last" : "_first");
}
inline void PrintTo(const Case2d& c, std::ostream* out) { *out << name(c); }

// Inputs as float64 that the case's dtype holds exactly, all with channels last: x [B, H, W, C], log_weight [B, H, W],
// sigma [B, Ho, Wo], dy [B, Ho, Wo, C]. The reference visits the targets in `visited`; dy is 0 at the others.
struct Problem2d {
  Case2d spec;
  std::vector<double> x, log_weight, sigma, dy;
  std::vector<std::int64_t> visited;
};

inline void round_inputs(Problem2d& p) {
  for (double& v : p.x) v = round_to(p.spec.type, v);
  for (double& v : p.dy) v = round_to(p.spec.type, v);
  for (double& v : p.log_weight) v = round_to(weight_type(p.spec.type), v);
  for (double& v : p.sigma) v = round_to(weight_type(p.spec.type), v);
}

inline Problem2d make_problem(const Case2d& c, std::uint64_t seed = 1) {
  Random random(seed * 7919 + std::hash<std::string>{}(name(c)));
  Problem2d p{.spec = c, .x = {}, .log_weight = {}, .sigma = {}, .dy = {}, .visited = {}};
  p.x.resize(static_cast<std::size_t>(c.batch * c.pixels() * c.channels));
  p.log_weight.resize(static_cast<std::size_t>(c.batch * c.pixels()));
  p.sigma.resize(static_cast<std::size_t>(c.batch * c.targets()));
  p.dy.resize(static_cast<std::size_t>(c.batch * c.targets() * c.channels));
  constexpr std::int64_t kBudget = 2'000'000;  // products in the reference, for one direction
  const auto affordable = std::max<std::int64_t>(12, kBudget / (c.batch * c.pixels() * (c.channels + 8)));
  std::set<std::int64_t> chosen = {0, c.targets() - 1, c.targets() / 2, c.out_width() - 1};
  while (std::ssize(chosen) < std::min(affordable, c.targets())) chosen.insert(random.below(c.targets()));
  p.visited.assign(chosen.begin(), chosen.end());
  for (double& v : p.x) v = random.normal();
  for (double& v : p.sigma) v = draw_size(c.sizes, std::max(c.height, c.width), random);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    double* l = p.log_weight.data() + b * c.pixels();
    draw_log_weights(c.logits, c.pixels(), l, random);
    for (std::int64_t j = 0; j < c.pixels(); ++j) {
      if (!masked(c.mask, j, c.pixels(), random)) continue;
      l[j] = -kInf;
      const double poison = std::array{kNaN, kInf, -kInf, largest(c.type)}[static_cast<std::size_t>(random.below(4))];
      std::fill_n(p.x.begin() + (b * c.pixels() + j) * c.channels, c.channels, poison);
    }
    for (const auto m : p.visited) {
      double* dy = p.dy.data() + (b * c.targets() + m) * c.channels;
      for (std::int64_t d = 0; d < c.channels; ++d) dy[d] = random.normal();
    }
  }
  round_inputs(p);
  return p;
}

// --- the covering list -----------------------------------------------------------------------------------------------

inline constexpr std::array<std::array<std::int64_t, 2>, 11> kMaps = {
    {{1, 1}, {1, 9}, {6, 1}, {2, 3}, {7, 5}, {16, 13}, {17, 31}, {28, 28}, {9, 65}, {56, 56}, {112, 112}}};
inline constexpr std::array<std::array<std::int64_t, 2>, 5> kStrides = {{{1, 1}, {2, 2}, {2, 1}, {1, 3}, {5, 200}}};
inline constexpr std::array<std::int64_t, 6> kMapChannels = {1, 3, 8, 33, 64, 130};
inline constexpr std::array kMapAlgorithms = {Algorithm::automatic, Algorithm::dense, Algorithm::window};
// Levels of: map, stride, channels, type, algorithm, sizes, logits, mask, channels last.
inline constexpr std::array<int, 9> kLevels2d = {11, 5, 6, 4, 3, 6, 6, 8, 2};
using Choice2d = std::array<int, kLevels2d.size()>;

inline Case2d case_of(const Choice2d& v) {
  const auto at = [&](std::size_t k) { return static_cast<std::size_t>(v[k]); };
  Case2d c;
  c.height = kMaps[at(0)][0];
  c.width = kMaps[at(0)][1];
  c.batch = c.pixels() > 500 ? 1 : 2;
  c.stride_h = kStrides[at(1)][0];
  c.stride_w = kStrides[at(1)][1];
  // Large maps of many channels would take seconds.
  c.channels = std::min(kMapChannels[at(2)], c.pixels() > 5000 ? 8 : c.pixels() > 2000 ? 33 : kMapChannels.back());
  c.type = kTypes[at(3)];
  c.algorithm = kMapAlgorithms[at(4)];
  c.sizes = static_cast<Sizes>(v[5]);
  c.logits = static_cast<Logits>(v[6]);
  c.mask = static_cast<Mask>(v[7]);
  c.channels_last = v[8] == 1;
  return c;
}

// A list in which any two levels of any two factors occur together, found greedily: the same for the same seed.
inline std::vector<Case2d> covering_cases_2d(std::uint64_t seed) {
  Random random(seed);
  const auto pairs_of = [](const Choice2d& v) {
    std::vector<Pair> pairs;
    for (std::size_t f = 0; f < v.size(); ++f) {
      for (std::size_t g = f + 1; g < v.size(); ++g) {
        pairs.push_back({static_cast<int>(f), v[f], static_cast<int>(g), v[g]});
      }
    }
    return pairs;
  };
  std::set<Pair> open;
  for (std::size_t f = 0; f < kLevels2d.size(); ++f) {
    for (std::size_t g = f + 1; g < kLevels2d.size(); ++g) {
      for (int a = 0; a < kLevels2d[f]; ++a) {
        for (int b = 0; b < kLevels2d[g]; ++b) open.insert({static_cast<int>(f), a, static_cast<int>(g), b});
      }
    }
  }
  std::vector<Case2d> cases;
  while (!open.empty()) {
    const Pair first = *std::next(open.begin(), random.below(std::ssize(open)));
    Choice2d best{};
    std::ptrdiff_t most = -1;
    for (int attempt = 0; attempt < 50; ++attempt) {
      Choice2d v{};
      for (std::size_t f = 0; f < v.size(); ++f) v[f] = static_cast<int>(random.below(kLevels2d[f]));
      v[static_cast<std::size_t>(first[0])] = first[1];
      v[static_cast<std::size_t>(first[2])] = first[3];
      const auto pairs = pairs_of(v);
      const auto gain = std::count_if(pairs.begin(), pairs.end(), [&](const Pair& p) { return open.contains(p); });
      if (gain > most) most = gain, best = v;
    }
    for (const auto& pair : pairs_of(best)) open.erase(pair);
    cases.push_back(case_of(best));
  }
  return cases;
}

// --- is a result right? ----------------------------------------------------------------------------------------------

// What the contract asks of one map.
struct Expected2d {
  Result want;
  double y_bound = 0, dx_bound = 0, dlog_weight_bound = 0, dsigma_bound = 0, ulps = 0;
};

inline Expected2d expected_of(const Problem2d& prob, std::int64_t b) {
  const auto& c = prob.spec;
  const auto tol = tolerance(c.type);
  const double* x = prob.x.data() + b * c.pixels() * c.channels;
  const double* l = prob.log_weight.data() + b * c.pixels();
  const double* sigma = prob.sigma.data() + b * c.targets();
  const double* dys = prob.dy.data() + b * c.targets() * c.channels;
  const auto empty = [&] {
    return Result{.y = std::vector<double>(static_cast<std::size_t>(c.targets() * c.channels)),
                  .dx = std::vector<double>(static_cast<std::size_t>(c.pixels() * c.channels)),
                  .dlog_weight = std::vector<double>(static_cast<std::size_t>(c.pixels())),
                  .dsigma = std::vector<double>(static_cast<std::size_t>(c.targets()))};
  };
  Expected2d e{.want = empty()};
  Result peer = empty();  // the formula evaluated densely in a half type, as PyTorch does; see dense_in_half
  const auto half = [&](double v) { return round_to(c.type, v); };
  double x_max = 0, x_norm = 0, dy_norm = 0, steepest = 0;
  for (std::int64_t j = 0; j < c.pixels(); ++j) {
    if (l[j] == -kInf) continue;
    for (std::int64_t d = 0; d < c.channels; ++d) x_max = std::max(x_max, std::abs(x[j * c.channels + d]));
    x_norm = std::max(x_norm, norm(x + j * c.channels, c.channels));
  }
  const reference::Pool2d in{c.height, c.width, c.stride_h, c.stride_w, c.channels, x, l, sigma};
  for (const auto m : prob.visited) {
    const double* dy = dys + m * c.channels;
    reference::pool2d(in, m, e.want.y.data() + m * c.channels);
    reference::pool2d_backward(in, m, dy, e.want.dx.data(), e.want.dlog_weight.data(), e.want.dsigma.data() + m);
    const auto s = reference::pool2d_sources(in, m);
    dy_norm = std::max(dy_norm, norm(dy, c.channels));
    double second = 0, mean = 0;
    std::vector<double> dp(s.p.size());
    for (std::size_t j = 0; j < s.p.size(); ++j) {
      if (s.p[j] == 0) continue;
      if (s.square[j] != 0) second += s.p[j] * s.square[j] / sigma[m] / sigma[m] / sigma[m];
      const auto at = static_cast<std::int64_t>(j) * c.channels;
      const double weight = half(round_to(Type::f32, s.p[j]));
      double dot = 0;
      for (std::int64_t d = 0; d < c.channels; ++d) {
        peer.y[static_cast<std::size_t>(m * c.channels + d)] += weight * x[at + d];
        peer.dx[static_cast<std::size_t>(at + d)] += weight * dy[d];
        dot += dy[d] * x[at + d];
      }
      dp[j] = half(dot);
      mean += s.p[j] * dp[j];
    }
    steepest = std::max(steepest, second);
    for (std::size_t j = 0; j < s.p.size(); ++j) {
      if (s.p[j] == 0) continue;
      const double dscore = s.p[j] * (dp[j] - mean);
      peer.dlog_weight[j] += dscore;
      if (s.square[j] != 0) {
        peer.dsigma[static_cast<std::size_t>(m)] += dscore * s.square[j] / sigma[m] / sigma[m] / sigma[m];
      }
    }
  }
  for (double& v : peer.y) v = half(v);
  for (double& v : peer.dx) v = half(v);
  const auto bound = [&](double fine, const std::vector<double>& other, const std::vector<double>& want) {
    return tol.peer == 0 ? fine : std::max(fine, tol.peer * largest_difference(other, want));
  };
  const double s_l = dy_norm * x_norm;
  e.y_bound = bound(tol.value * x_max, peer.y, e.want.y);
  e.dx_bound = bound(tol.gradient * largest_of(e.want.dx), peer.dx, e.want.dx);
  e.dlog_weight_bound =
      bound(tol.gradient * largest_of(e.want.dlog_weight) + tol.scale * s_l, peer.dlog_weight, e.want.dlog_weight);
  e.dsigma_bound =
      bound(tol.gradient * largest_of(e.want.dsigma) + tol.scale * s_l * steepest, peer.dsigma, e.want.dsigma);
  e.ulps = tol.peer == 0 ? 0 : 1;
  return e;
}

// `got` in the shapes of the problem, channels last.
inline void expect_accurate(const Problem2d& prob, const Result& got) {
  const auto& c = prob.spec;
  const bool finite = std::all_of(got.y.begin(), got.y.end(), [](double v) { return std::isfinite(v); });
  EXPECT_TRUE(finite) << "y is not finite everywhere";
  for (std::int64_t b = 0; b < c.batch; ++b) {
    SCOPED_TRACE("map " + std::to_string(b));
    const Expected2d e = expected_of(prob, b);
    for (const auto m : prob.visited) {
      const auto k = m * c.channels;
      const std::vector<double> y(e.want.y.begin() + k, e.want.y.begin() + k + c.channels);
      EXPECT_TRUE(close("y of target " + std::to_string(m), got.y.data() + b * c.targets() * c.channels + k, y,
                        e.y_bound, e.ulps, c.type));
    }
    const Type fine = weight_type(c.type);
    EXPECT_TRUE(close("dx", got.dx.data() + b * c.pixels() * c.channels, e.want.dx, e.dx_bound, e.ulps, c.type));
    EXPECT_TRUE(close("dlog_weight", got.dlog_weight.data() + b * c.pixels(), e.want.dlog_weight, e.dlog_weight_bound,
                      e.ulps, fine));
    EXPECT_TRUE(close("dsigma", got.dsigma.data() + b * c.targets(), e.want.dsigma, e.dsigma_bound, e.ulps, fine));
  }
}

}  // namespace contextpool::testing
