// Is a result of pool1d right? The accuracy contract, against the float64 reference at the targets a problem visits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/reference/pool1d.h"
#include "pool1d_cases.h"

namespace contextpool::testing {

// The tolerance table. An element may be off by
//   y:          value * max|x|
//   gradients:  gradient * max|gradient| + scale * S   (S = 0 for x; for log_weight and sigma see Scales)
// or, where that is more (half types), by peer * (the largest error of the formula evaluated densely in that dtype),
// plus one ulp.
struct Tolerance {
  double value, gradient, scale, peer;
};

inline Tolerance tolerance(Type type) {
  switch (type) {
    case Type::f64: return {.value = 1e-12, .gradient = 1e-12, .scale = 1e-13, .peer = 0};
    case Type::f32: return {.value = 1e-5, .gradient = 1e-5, .scale = 1e-6, .peer = 0};
    default: return {.value = 1e-5, .gradient = 1e-5, .scale = 1e-6, .peer = 2};
  }
}

// Outputs as float64, in the shapes of Problem's inputs: y [B, M, D], dx [B, N, D], dlog_weight [B, N], dsigma [B, M].
struct Result {
  std::vector<double> y, dx, dlog_weight, dsigma;
};

// Sizes the contract measures errors by, for one row. Masked tokens have no part in them.
struct Scales {
  double x = 0;           // max|x|
  double log_weight = 0;  // max_i |dy_i| * max_j |x_j|, in 2-norms
  double sigma = 0;       // that times max_i sum_j p_ij t^2 / sigma_i^3
};

inline Problem row_of(const Problem& p, std::int64_t b) {
  const auto slice = [b](const std::vector<double>& v, std::int64_t count) {
    return std::vector<double>(v.begin() + b * count, v.begin() + (b + 1) * count);
  };
  Problem row{.spec = p.spec,
              .x = slice(p.x, p.spec.tokens * p.spec.channels),
              .log_weight = slice(p.log_weight, p.spec.tokens),
              .sigma = slice(p.sigma, p.spec.targets),
              .dy = slice(p.dy, p.spec.targets * p.spec.channels),
              .visited = p.visited};
  row.spec.batch = 1;
  return row;
}

inline reference::Pool1d arguments(const Problem& row) {
  return {row.spec.tokens, row.spec.targets,      row.spec.channels, row.spec.causal,
          row.x.data(),    row.log_weight.data(), row.sigma.data()};
}

// The reference's y (0 where not visited) and gradients of one row.
inline Result reference_of(const Problem& row) {
  const auto& c = row.spec;
  Result r{.y = std::vector<double>(row.dy.size()),
           .dx = std::vector<double>(row.x.size()),
           .dlog_weight = std::vector<double>(row.log_weight.size()),
           .dsigma = std::vector<double>(row.sigma.size())};
  const auto in = arguments(row);
  for (const auto m : row.visited) {
    reference::pool1d(in, m, r.y.data() + m * c.channels);
    reference::pool1d_backward(in, m, row.dy.data() + m * c.channels, r.dx.data(), r.dlog_weight.data(),
                               r.dsigma.data() + m);
  }
  return r;
}

inline double norm(const double* v, std::int64_t count) {
  double sum = 0;
  for (std::int64_t d = 0; d < count; ++d) sum += v[d] * v[d];
  return std::sqrt(sum);
}

inline Scales scales_of(const Problem& row) {
  const auto& c = row.spec;
  Scales s;
  double x_norm = 0, dy_norm = 0, steepest = 0;
  for (std::int64_t j = 0; j < c.tokens; ++j) {
    if (row.log_weight[static_cast<std::size_t>(j)] == -kInf) continue;
    const double* x = row.x.data() + j * c.channels;
    for (std::int64_t d = 0; d < c.channels; ++d) s.x = std::max(s.x, std::abs(x[d]));
    x_norm = std::max(x_norm, norm(x, c.channels));
  }
  for (const auto m : row.visited) {
    dy_norm = std::max(dy_norm, norm(row.dy.data() + m * c.channels, c.channels));
    const double sigma = row.sigma[static_cast<std::size_t>(m)];
    if (!(sigma > 0)) continue;
    const auto p = reference::pool1d_weights(arguments(row), m);
    double sum = 0;
    for (std::int64_t j = 0; j < c.tokens; ++j) {
      const auto t = static_cast<double>(c.tokens - c.targets + m - j);
      if (t != 0 && p[static_cast<std::size_t>(j)] != 0) {
        sum += p[static_cast<std::size_t>(j)] * (t / sigma) * (t / sigma) / sigma;
      }
    }
    steepest = std::max(steepest, sum);
  }
  s.log_weight = dy_norm * x_norm;
  s.sigma = s.log_weight * steepest;
  return s;
}

// The same formula evaluated densely in a half type as PyTorch does: weights cast to it, products accumulated in higher
// precision and rounded once; backward through autograd's steps. The yardstick of the half types.
inline Result dense_in_half(const Problem& row) {
  const auto& c = row.spec;
  const auto half = [&](double v) { return round_to(c.type, v); };
  Result r{.y = std::vector<double>(row.dy.size()),
           .dx = std::vector<double>(row.x.size()),
           .dlog_weight = std::vector<double>(row.log_weight.size()),
           .dsigma = std::vector<double>(row.sigma.size())};
  for (const auto m : row.visited) {
    const auto p = reference::pool1d_weights(arguments(row), m);
    const double* dy = row.dy.data() + m * c.channels;
    double* y = r.y.data() + m * c.channels;
    std::vector<double> dp(p.size());
    double mean = 0;
    for (std::size_t j = 0; j < p.size(); ++j) {
      if (p[j] == 0) continue;
      const double* x = row.x.data() + static_cast<std::int64_t>(j) * c.channels;
      double* dx = r.dx.data() + static_cast<std::int64_t>(j) * c.channels;
      const double weight = half(round_to(Type::f32, p[j]));
      double dot = 0;
      for (std::int64_t d = 0; d < c.channels; ++d) {
        y[d] += weight * x[d];
        dx[d] += weight * dy[d];
        dot += dy[d] * x[d];
      }
      dp[j] = half(dot);
      mean += p[j] * dp[j];
    }
    for (std::int64_t d = 0; d < c.channels; ++d) y[d] = half(y[d]);
    for (std::size_t j = 0; j < p.size(); ++j) {
      if (p[j] == 0) continue;
      const double dscore = p[j] * (dp[j] - mean);
      const double t = static_cast<double>(c.tokens - c.targets + m) - static_cast<double>(j);
      const double sigma = row.sigma[static_cast<std::size_t>(m)];
      r.dlog_weight[j] += dscore;
      if (t != 0) r.dsigma[static_cast<std::size_t>(m)] += dscore * (t / sigma) * (t / sigma) / sigma;
    }
  }
  for (double& v : r.dx) v = half(v);
  return r;
}

// The most that rounding each score to the half type, as dense_in_half does, can change a gradient of log_weight and of
// sigma. What it does change can be far less by luck: in short rows, or where scores are equal.
inline std::pair<double, double> rounding_of_scores(const Problem& row) {
  const auto& c = row.spec;
  std::vector<double> dlog_weight(row.log_weight.size());
  double dsigma = 0;
  for (const auto m : row.visited) {
    const auto p = reference::pool1d_weights(arguments(row), m);
    std::vector<double> score(p.size());
    double mean = 0;
    for (std::size_t j = 0; j < p.size(); ++j) {
      if (p[j] == 0) continue;
      double dot = 0;
      for (std::int64_t d = 0; d < c.channels; ++d) {
        dot += row.dy[static_cast<std::size_t>(m * c.channels + d)] *
               row.x[static_cast<std::size_t>(static_cast<std::int64_t>(j) * c.channels + d)];
      }
      score[j] = std::abs(dot);
      mean += p[j] * score[j];
    }
    double moment = 0;
    const double sigma = row.sigma[static_cast<std::size_t>(m)];
    for (std::size_t j = 0; j < p.size(); ++j) {
      if (p[j] == 0) continue;
      const double change = p[j] * (score[j] + mean);
      const double t = static_cast<double>(c.tokens - c.targets + m) - static_cast<double>(j);
      dlog_weight[j] += change;
      if (t != 0) moment += change * (t / sigma) * (t / sigma) / sigma;
    }
    dsigma = std::max(dsigma, moment);
  }
  const double unit = std::ldexp(1.0, -mantissa_bits(c.type) - 1);
  return {unit * *std::max_element(dlog_weight.begin(), dlog_weight.end()), unit * dsigma};
}

inline double largest_of(const std::vector<double>& v) {
  double most = 0;
  for (const double e : v) most = std::max(most, std::abs(e));
  return most;
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t k = 0; k < a.size(); ++k) most = std::max(most, std::abs(a[k] - b[k]));
  return most;
}

// |got - want| <= bound + ulps * ulp(want) for every element; says which element is worst. Numbers below the least
// normal one may be taken for 0.
inline ::testing::AssertionResult close(const std::string& what, const double* got, const std::vector<double>& want,
                                        double bound, double ulps, Type type) {
  const double least = type == Type::f16 ? 0 : std::ldexp(1.0, least_exponent(type));
  double worst = -1;
  std::size_t where = 0;
  for (std::size_t k = 0; k < want.size(); ++k) {
    const double allowed = std::max(bound + ulps * ulp(type, want[k]), least);
    const double error = std::abs(got[k] - want[k]);
    if (error <= allowed) continue;
    const double excess = std::isnan(error) ? kInf : error - allowed;
    if (excess > worst) worst = excess, where = k;
  }
  if (worst < 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << what << "[" << where << "] of " << want.size() << " is " << got[where]
                                       << ", expected " << want[where] << "; error "
                                       << std::abs(got[where] - want[where]) << ", allowed " << bound
                                       << (ulps == 0 ? "" : " and one ulp");
}

// What the contract asks of one row.
struct Expected {
  Problem row;
  Result want;
  double y_bound = 0, dx_bound = 0, dlog_weight_bound = 0, dsigma_bound = 0, ulps = 0;
};

// For each row of the batch. Costly beside a fast kernel: worth keeping where several results are compared with it.
inline std::vector<Expected> expected_of(const Problem& p) {
  const auto tol = tolerance(p.spec.type);
  std::vector<Expected> rows;
  for (std::int64_t b = 0; b < p.spec.batch; ++b) {
    Expected e;
    e.row = row_of(p, b);
    e.want = reference_of(e.row);
    const Scales s = scales_of(e.row);
    const Result peer = tol.peer == 0 ? e.want : dense_in_half(e.row);
    // Half types need not beat float32: the peer can be exact by luck, as where every weight is 0 or 1.
    const auto bound = [&](double fine, const std::vector<double>& other, const std::vector<double>& want) {
      return std::max(fine, tol.peer * largest_difference(other, want));
    };
    const auto gradient_bound = [&](const std::vector<double>& other, const std::vector<double>& want, double scale) {
      return bound(tol.gradient * largest_of(want) + tol.scale * scale, other, want);
    };
    e.y_bound = bound(tol.value * s.x, peer.y, e.want.y);
    e.dx_bound = gradient_bound(peer.dx, e.want.dx, 0);
    e.dlog_weight_bound = gradient_bound(peer.dlog_weight, e.want.dlog_weight, s.log_weight);
    e.dsigma_bound = gradient_bound(peer.dsigma, e.want.dsigma, s.sigma);
    e.ulps = tol.peer == 0 ? 0 : 1;
    if (tol.peer != 0 && p.spec.rounds_weights) {
      const auto [dlog_weight, dsigma] = rounding_of_scores(e.row);
      e.dlog_weight_bound = std::max(e.dlog_weight_bound, dlog_weight);
      e.dsigma_bound = std::max(e.dsigma_bound, dsigma);
    }
    rows.push_back(std::move(e));
  }
  return rows;
}

// Checks a whole result: y at the visited targets, and every gradient.
inline void expect_accurate(const std::vector<Expected>& expected, const Result& got) {
  const bool finite = std::all_of(got.y.begin(), got.y.end(), [](double v) { return std::isfinite(v); });
  EXPECT_TRUE(finite) << "y is not finite everywhere";
  for (std::int64_t b = 0; b < std::ssize(expected); ++b) {
    SCOPED_TRACE("row " + std::to_string(b));
    const Expected& e = expected[static_cast<std::size_t>(b)];
    const auto& c = e.row.spec;
    const Type fine = weight_type(c.type);
    for (const auto m : e.row.visited) {
      const auto k = m * c.channels;
      const std::vector<double> y(e.want.y.begin() + k, e.want.y.begin() + k + c.channels);
      EXPECT_TRUE(close("y of target " + std::to_string(m), got.y.data() + b * c.targets * c.channels + k, y, e.y_bound,
                        e.ulps, c.type));
    }
    EXPECT_TRUE(close("dx", got.dx.data() + b * c.tokens * c.channels, e.want.dx, e.dx_bound, e.ulps, c.type));
    EXPECT_TRUE(close("dlog_weight", got.dlog_weight.data() + b * c.tokens, e.want.dlog_weight, e.dlog_weight_bound,
                      e.ulps, fine));
    EXPECT_TRUE(close("dsigma", got.dsigma.data() + b * c.targets, e.want.dsigma, e.dsigma_bound, e.ulps, fine));
  }
}

inline void expect_accurate(const Problem& p, const Result& got) { expect_accurate(expected_of(p), got); }

}  // namespace contextpool::testing
