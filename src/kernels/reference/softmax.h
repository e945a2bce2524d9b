// The average's weights from its scores, in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace contextpool::reference {

// exp(s_j) / sum_k exp(s_k) in place of s_j; -inf is no source, and without any source all are 0. NaN among the scores
// makes every weight of a source NaN.
inline void softmax(std::vector<double>& scores) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  double largest = kNone;
  for (const double s : scores) {
    if (std::isnan(s)) largest = s;
    largest = std::isnan(largest) ? largest : std::max(largest, s);
  }
  double sum = 0;
  for (double& s : scores) {
    s = s == kNone ? 0 : std::exp(s - largest);
    sum += s;
  }
  if (sum == 0) return;
  for (double& s : scores) s /= sum;
}

}  // namespace contextpool::reference
