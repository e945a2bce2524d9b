// pool1d at its limits: sizes of nothing and of everything, masks over anything, NaN and infinity.
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "contextpool/ops/pool1d.h"
#include "pool1d_cases.h"

namespace contextpool::testing {
namespace {

bool all_finite(const at::Tensor& t) { return t.isfinite().all().item<bool>(); }

class Pool1dLimits : public EachSetting {
 protected:
  Case plain(std::int64_t tokens = 200, std::int64_t channels = 3) const {
    Case c = spec(setting, 2, tokens, channels);
    c.logits = Logits::spread_5;
    return c;
  }
  static Problem with_size(const Case& c, double sigma) {
    Problem p = make_problem(c);
    std::fill(p.sigma.begin(), p.sigma.end(), sigma);
    round_inputs(p);
    return p;
  }
};

TEST_P(Pool1dLimits, SizesOfNothingLeaveTheTokenItself) {
  each([this] {
    for (const double sigma : {0.0, -0.0, -1.0, -1e30, -kInf, 1e-6, 1e-20, 1e-30, 1e-44, 0.05}) {
      SCOPED_TRACE(sigma);
      const Case c = plain();
      const Inputs in = tensors_of(with_size(c, sigma), device());
      const Outputs out = run(in, c);
      EXPECT_TRUE(same(out.y, in.x));
      EXPECT_TRUE(same(out.dx, in.dy));
      EXPECT_TRUE(all_finite(out.dlog_weight));
      EXPECT_LE(out.dlog_weight.abs().max().item<double>(), 1e-5);
      EXPECT_TRUE(out.dsigma.eq(0).all().item<bool>());
    }
  });
}

TEST_P(Pool1dLimits, SizesOfEverythingGiveTheWeightedMeanAndFiniteGradients) {
  each([this] {
    for (const double sigma : {1e5, 1e10, 1e19, 1e20, 1e30, 3e38, kInf}) {
      SCOPED_TRACE(sigma);
      const Case c = plain();
      const Problem p = with_size(c, sigma);
      expect_accurate(p, values_of(run(tensors_of(p, device()), c)));
    }
  });
}

TEST_P(Pool1dLimits, SizesOfEveryKindInOneRowGiveFiniteGradients) {
  each([this] {
    const std::vector<double> kinds = {0,   -1,  1e-30, 1e-6, 0.07905, 0.07906, 0.3,  1, 7,
                                       1e3, 1e6, 1e18,  1e30, kInf,    -kInf,   1e-9, 2, 0.5};
    for (const auto mask : {Mask::none, Mask::alternating, Mask::islands}) {
      SCOPED_TRACE(name(mask));
      Case c = plain(700);
      c.mask = mask;
      Problem p = make_problem(c);
      for (std::size_t k = 0; k < p.sigma.size(); ++k) p.sigma[k] = kinds[k % kinds.size()];
      round_inputs(p);
      expect_accurate(p, values_of(run(tensors_of(p, device()), c)));
    }
  });
}

TEST_P(Pool1dLimits, WhatLiesUnderAMaskNeverShows) {
  each([this] {
    for (const auto mask : {Mask::left, Mask::right, Mask::middle, Mask::alternating, Mask::everywhere}) {
      Case c = plain(300);
      c.sizes = Sizes::proportional;
      c.mask = mask;
      Problem p = make_problem(c);
      const auto fill_masked = [&](double v) {
        for (std::size_t j = 0; j < p.log_weight.size(); ++j) {
          if (p.log_weight[j] == -kInf) std::fill_n(p.x.begin() + static_cast<std::ptrdiff_t>(j) * 3, 3, v);
        }
      };
      fill_masked(0);
      const Outputs want = run(tensors_of(p, device()), c);
      for (const double v : {kNaN, kInf, -kInf, largest(c.type)}) {
        SCOPED_TRACE(std::string(name(mask)) + " over " + std::to_string(v));
        fill_masked(v);
        const Inputs in = tensors_of(p, device());
        const Outputs got = run(in, c);
        expect_same(got, want);
        const auto hidden = in.log_weight.isinf();
        EXPECT_TRUE(got.dx.masked_select(hidden.unsqueeze(-1)).eq(0).all().item<bool>());
        EXPECT_TRUE(got.dlog_weight.masked_select(hidden).eq(0).all().item<bool>());
      }
    }
  });
}

TEST_P(Pool1dLimits, ResultsAndGradientsAreZeroWhereAllIsMasked) {
  each([this] {
    Case c = plain(130);
    c.mask = Mask::everywhere;
    const Outputs out = run(tensors_of(make_problem(c), device()), c);
    for (const auto& t : out.list()) EXPECT_TRUE(t.eq(0).all().item<bool>());
  });
}

TEST_P(Pool1dLimits, NaNInALiveFeatureSurfacesAroundItAndNotBeyondTheSupport) {
  each([this] {
    for (const double bad : {kNaN, kInf}) {
      Case c = plain(400);
      c.logits = Logits::spread_1;                        // a source of negligible weight need not be used
      Inputs in = tensors_of(with_size(c, 4), device());  // support of 50 tokens
      const auto clean = run(in, c).dlog_weight;
      in.x.select(1, 200).fill_(bad);
      const Outputs out = run(in, c);
      const auto finite = out.y.isfinite().all(-1);
      const int64_t first = c.causal ? 200 : 198;
      EXPECT_FALSE(finite.slice(1, first, 203).any().item<bool>());
      EXPECT_TRUE(finite.slice(1, 0, c.causal ? 200 : 149).all().item<bool>());
      EXPECT_TRUE(finite.slice(1, 251).all().item<bool>());
      EXPECT_TRUE(all_finite(out.dx));  // the features have no part in their own gradient
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, 99), std::pair<int64_t, int64_t>(302, 400)}) {
        const auto off = out.dlog_weight.slice(1, begin, end).sub(clean.slice(1, begin, end)).abs().max();
        EXPECT_LE(off.item<double>(), 1e-4 * clean.abs().max().item<double>()) << begin;
      }
    }
  });
}

TEST_P(Pool1dLimits, NaNWeightSurfacesAroundItAndNotBeyondTheSupport) {
  each([this] {
    const Case c = plain(400);
    Inputs in = tensors_of(with_size(c, 4), device());
    in.log_weight.select(1, 200).fill_(kNaN);
    const auto nan = run(in, c).y.isnan().all(-1);
    EXPECT_TRUE(nan.slice(1, c.causal ? 200 : 198, 203).all().item<bool>());
    EXPECT_FALSE(nan.slice(1, 0, c.causal ? 200 : 149).any().item<bool>());
    EXPECT_FALSE(nan.slice(1, 251).any().item<bool>());
  });
}

TEST_P(Pool1dLimits, NaNSizeGivesNaNForItsTargetOnly) {
  each([this] {
    const Case c = plain(300);
    Inputs in = tensors_of(make_problem(c), device());
    const auto clean = run(in, c);
    in.sigma.select(1, 77).fill_(kNaN);
    const Outputs out = run(in, c);
    EXPECT_TRUE(out.y.select(1, 77).isnan().all().item<bool>());
    EXPECT_TRUE(same(out.y.slice(1, 0, 77), clean.y.slice(1, 0, 77)));
    EXPECT_TRUE(same(out.y.slice(1, 78), clean.y.slice(1, 78)));
    EXPECT_TRUE(out.dsigma.select(1, 77).isnan().all().item<bool>());
    EXPECT_TRUE(all_finite(out.dsigma.slice(1, 0, 77)) && all_finite(out.dsigma.slice(1, 78)));
  });
}

TEST_P(Pool1dLimits, NumbersOfEveryKindNeitherCrashNorHang) {
  each([this] {
    const std::vector<double> kinds = {kNaN, kInf, -kInf, 0, -0.0, 1e300, -1e300, 1e-300, 1, 65504, -3, 1e-7};
    for (const std::int64_t tokens : {1, 2, 33, 300}) {
      for (const std::size_t step : {1, 5, 7}) {
        const Case c = plain(tokens);
        Problem p = make_problem(c);
        std::size_t k = 0;
        for (auto* values : {&p.x, &p.log_weight, &p.sigma, &p.dy}) {
          for (double& v : *values) v = kinds[(k += step) % kinds.size()];
        }
        round_inputs(p);
        EXPECT_EQ(run(tensors_of(p, device()), c).y.size(1), tokens);
      }
    }
  });
}

TEST_P(Pool1dLimits, LargeFeaturesDoNotOverflowOnTheWay) {
  each([this] {
    const Case c = plain(300);
    // Room for a sum over the row, none for weights of e^20 beside it.
    const double big = c.type == Type::f16 ? 16384 : largest(c.type) * 1e-8;
    Inputs in = tensors_of(with_size(c, 30), device());
    in.x = at::ones_like(in.x).mul(big);
    const auto y = pool1d(in.x, in.log_weight, in.sigma, c.causal, name(c.algorithm)).to(at::kDouble);
    EXPECT_LE(y.div(big).sub(1).abs().max().item<double>(), ulp(c.type, 1) + tolerance(c.type).value);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Pool1dLimits, settings(), setting_name);

}  // namespace
}  // namespace contextpool::testing
