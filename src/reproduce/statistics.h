// What several runs of the same kind say together: with x_1 ... x_n one figure of each,
//
//   mean = sum x / n,   deviation = sqrt(sum (x - mean)^2 / (n - 1)),
//   95 % interval of the mean = mean +- t deviation / sqrt(n),   t the 0.975 quantile of Student's t, n - 1 degrees
//
// The interval takes the runs for independent draws of a normal distribution. With 2 or 3 runs it is wide (t is 12.7
// and 4.3), as it should be.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace contextpool::reproduce {

struct Summary {
  std::int64_t count = 0;
  double mean = 0;
  std::optional<double> deviation;  // none of fewer than two
  std::optional<double> half;       // half the width of the 95 % interval; none of fewer than two
};

// Throws if there is none, or one that is not finite.
Summary summarize(const std::vector<double>& values);

// P(T <= t) of Student's distribution, and its inverse for p in (0, 1). Degrees of freedom >= 1.
double student_t(double t, double degrees);
double student_t_quantile(double p, double degrees);

// What an interval says of a claim about a difference's sign.
enum class Verdict { same_sign, no_difference, opposite, unknown };  // unknown: fewer than two pairs
Verdict verdict(const Summary& difference, bool claimed_negative);
const char* word(Verdict verdict);

}  // namespace contextpool::reproduce
