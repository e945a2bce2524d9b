#include "reproduce/statistics.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace contextpool::reproduce {
namespace {

constexpr double kTwoSided = 0.975;  // leaves 2.5 % on either side

double beside_zero(double x) {
  constexpr double kTiny = 1e-300;
  return std::fabs(x) < kTiny ? kTiny : x;
}

// The continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method. It converges fast where
// x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr int kTerms = 10'000;
  double c = 1, d = 1 / beside_zero(1 - (a + b) * x / (a + 1)), h = d;
  for (int m = 1; m < kTerms; ++m) {
    const auto step = [&](double coefficient) {
      d = 1 / beside_zero(1 + coefficient * d);
      c = beside_zero(1 + coefficient / c);
      h *= c * d;
      return c * d;
    };
    step(m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)));
    const auto change = step(-(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)));
    if (std::fabs(change - 1) < std::numeric_limits<double>::epsilon()) break;
  }
  return h;
}

// The regularized incomplete beta function I_x(a, b); 1 - x is given too, so that nothing is lost near 1.
double incomplete_beta(double a, double b, double x, double one_less_x) {
  if (x <= 0) return 0;
  if (one_less_x <= 0) return 1;
  const auto front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log(one_less_x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, one_less_x) / b;
}

}  // namespace

Summary summarize(const std::vector<double>& values) {
  if (values.empty()) throw std::invalid_argument("a mean of no values");
  Summary s;
  s.count = static_cast<std::int64_t>(values.size());
  const auto n = static_cast<double>(s.count);
  for (const auto x : values) {
    if (!std::isfinite(x)) throw std::invalid_argument("a mean of values that are not all finite");
    s.mean += x / n;
  }
  if (s.count < 2) return s;
  double squares = 0;
  for (const auto x : values) squares += (x - s.mean) * (x - s.mean);
  s.deviation = std::sqrt(squares / (n - 1));
  s.half = student_t_quantile(kTwoSided, n - 1) * *s.deviation / std::sqrt(n);
  return s;
}

double student_t(double t, double degrees) {
  const auto square = t * t;
  const auto tail = incomplete_beta(degrees / 2, 0.5, degrees / (degrees + square), square / (degrees + square)) / 2;
  return t > 0 ? 1 - tail : tail;
}

double student_t_quantile(double p, double degrees) {
  if (!(p > 0 && p < 1) || !(degrees >= 1)) {
    throw std::invalid_argument("Student's quantile of " + std::to_string(p) + " with " + std::to_string(degrees) +
                                " degrees of freedom; expected a share between 0 and 1, and at least 1");
  }
  if (p > 0.5) return -student_t_quantile(1 - p, degrees);
  double low = -1, high = 0;
  while (student_t(low, degrees) > p) low *= 2;
  while (true) {  // halving, until there is no number between
    const auto middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) return middle;
    (student_t(middle, degrees) < p ? low : high) = middle;
  }
}

Verdict verdict(const Summary& difference, bool claimed_negative) {
  if (!difference.half) return Verdict::unknown;
  if (std::fabs(difference.mean) <= *difference.half) return Verdict::no_difference;
  return (difference.mean < 0) == claimed_negative ? Verdict::same_sign : Verdict::opposite;
}

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::same_sign: return "same sign";
    case Verdict::no_difference: return "no difference";
    case Verdict::opposite: return "opposite";
    case Verdict::unknown: break;
  }
  return "not known";
}

}  // namespace contextpool::reproduce
