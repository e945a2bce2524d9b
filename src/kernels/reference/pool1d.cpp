// y_i = sum_j p_ij x_j,  p_ij = exp(l_j - t^2 / (2 sigma_i^2)) / sum_k (same over k),  t = i - j
#include "kernels/reference/pool1d.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/softmax.h"

namespace contextpool::reference {

std::vector<double> pool1d_weights(const Pool1d& in, std::int64_t target) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::int64_t i = in.tokens - in.targets + target;
  const double sigma = in.sigma[target];
  std::vector<double> p(static_cast<std::size_t>(in.tokens), -kInfinity);
  for (std::int64_t j = 0; j < in.tokens; ++j) {
    const double t = static_cast<double>(i - j);
    const bool exists = j == i || (!(sigma <= 0) && !(t * t > 160 * sigma * sigma) && !(in.causal && j > i));
    if (!exists || in.log_weight[j] == -kInfinity) continue;
    p[j] = in.log_weight[j] - (j == i ? 0 : t * t / (2 * sigma * sigma));
  }
  softmax(p);
  return p;
}

void pool1d(const Pool1d& in, std::int64_t target, double* y) {
  const auto p = pool1d_weights(in, target);
  std::fill_n(y, in.channels, 0.0);
  for (std::int64_t j = 0; j < in.tokens; ++j) {
    if (p[j] == 0) continue;
    for (std::int64_t d = 0; d < in.channels; ++d) y[d] += p[j] * in.x[j * in.channels + d];
  }
}

void pool1d_backward(const Pool1d& in, std::int64_t target, const double* dy, double* dx, double* dlog_weight,
                     double* dsigma) {
  const auto p = pool1d_weights(in, target);
  const std::int64_t i = in.tokens - in.targets + target;
  std::vector<double> score(p.size(), 0.0);  // dy . x_j
  double mean = 0;                           // dy . y
  for (std::int64_t j = 0; j < in.tokens; ++j) {
    if (p[j] == 0) continue;
    for (std::int64_t d = 0; d < in.channels; ++d) score[j] += dy[d] * in.x[j * in.channels + d];
    mean += p[j] * score[j];
  }
  *dsigma = 0;
  for (std::int64_t j = 0; j < in.tokens; ++j) {
    if (p[j] == 0) continue;
    const double t = static_cast<double>(i - j);
    for (std::int64_t d = 0; d < in.channels; ++d) dx[j * in.channels + d] += p[j] * dy[d];
    dlog_weight[j] += p[j] * (score[j] - mean);
    if (j != i) *dsigma += p[j] * (score[j] - mean) * t * t / std::pow(in.sigma[target], 3);
  }
}

}  // namespace contextpool::reference
