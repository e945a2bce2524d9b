// Means, deviations and intervals against values that scipy.stats gives, to its last digits.
#include "reproduce/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

namespace contextpool::reproduce {
namespace {

TEST(Statistics, StudentsQuantilesAreThoseOfTables) {
  // With one degree tan(pi (p - 1/2)), with two (2 p - 1) / sqrt(2 p (1 - p)); the others by scipy.stats.t.ppf.
  EXPECT_NEAR(student_t_quantile(0.975, 1), std::tan(M_PI * 0.475), 1e-11);
  EXPECT_NEAR(student_t_quantile(0.975, 2), 0.95 / std::sqrt(2 * 0.975 * 0.025), 1e-12);
  for (const auto& [p, degrees, expected] : {std::tuple{0.975, 3.0, 3.1824463052837078},
                                             {0.975, 4.0, 2.7764451051977934},
                                             {0.975, 9.0, 2.262157162798205},
                                             {0.95, 5.0, 2.0150483733330233},
                                             {0.975, 30.0, 2.0422724563012378}}) {
    EXPECT_NEAR(student_t_quantile(p, degrees), expected, 1e-13 * expected) << degrees;
    EXPECT_NEAR(student_t_quantile(1 - p, degrees), -expected, 1e-13 * expected) << degrees;
  }
}

TEST(Statistics, TheQuantileInvertsTheDistribution) {
  for (const double degrees : {1.0, 2.0, 3.5, 20.0, 500.0}) {
    for (const double p : {1e-6, 0.01, 0.3, 0.5, 0.9, 0.999}) {
      EXPECT_NEAR(student_t(student_t_quantile(p, degrees), degrees), p, 1e-13) << p << " " << degrees;
    }
  }
}

TEST(Statistics, ThreeRunsGiveMeanDeviationAndInterval) {
  const auto s = summarize({1.847, 1.825, 1.844});
  EXPECT_EQ(s.count, 3);
  EXPECT_NEAR(s.mean, 1.8386666666666667, 1e-15);
  EXPECT_NEAR(*s.deviation, 0.011930353445448889, 1e-15);  // numpy.std(ddof=1)
  EXPECT_NEAR(*s.half, 4.302652729749464 * *s.deviation / std::sqrt(3.0), 1e-14);
}

TEST(Statistics, OneRunHasNoSpreadAndNoneNoMean) {
  const auto s = summarize({2.5});
  EXPECT_EQ(s.mean, 2.5);
  EXPECT_FALSE(s.deviation || s.half);
  EXPECT_THROW(summarize({}), std::invalid_argument);
  EXPECT_THROW(summarize({1, std::numeric_limits<double>::quiet_NaN()}), std::invalid_argument);
  EXPECT_THROW(student_t_quantile(1, 3), std::invalid_argument);
  EXPECT_THROW(student_t_quantile(0.5, 0), std::invalid_argument);
}

TEST(Statistics, AClaimIsJudgedByWhetherTheIntervalHasZero) {
  const auto below = summarize({-0.05, -0.06, -0.055}), around = summarize({-0.05, 0.06, 0.01});
  EXPECT_EQ(verdict(below, true), Verdict::same_sign);
  EXPECT_EQ(verdict(below, false), Verdict::opposite);
  EXPECT_EQ(verdict(around, true), Verdict::no_difference);
  EXPECT_EQ(verdict(summarize({-0.05}), true), Verdict::unknown);
  EXPECT_EQ(verdict(summarize({0, 0}), true), Verdict::no_difference);
}

}  // namespace
}  // namespace contextpool::reproduce
