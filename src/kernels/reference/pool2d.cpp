// y_i = sum_j p_ij x_j,  p_ij = exp(l_j - d^2 / (2 sigma_i^2)) / sum_k (same over k),  d^2 = di^2 + dj^2
#include "kernels/reference/pool2d.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/softmax.h"

namespace contextpool::reference {

Sources pool2d_sources(const Pool2d& in, std::int64_t target) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::int64_t out_width = (in.width + in.stride_w - 1) / in.stride_w;
  const std::int64_t row = target / out_width * in.stride_h;
  const std::int64_t column = target % out_width * in.stride_w;
  const double sigma = in.sigma[target];
  const auto pixels = static_cast<std::size_t>(in.height * in.width);
  Sources s{std::vector<double>(pixels), std::vector<double>(pixels, -kInfinity)};
  for (std::size_t j = 0; j < pixels; ++j) {
    const std::int64_t source_row = static_cast<std::int64_t>(j) / in.width;
    const auto di = static_cast<double>(row - source_row);
    const auto dj = static_cast<double>(column - static_cast<std::int64_t>(j) % in.width);
    const double square = s.square[j] = di * di + dj * dj;
    const bool exists = square == 0 || (!(sigma <= 0) && !(square > 160 * sigma * sigma));
    if (!exists || in.log_weight[j] == -kInfinity) continue;
    s.p[j] = in.log_weight[j] - (square == 0 ? 0 : square / (2 * sigma * sigma));
  }
  softmax(s.p);
  return s;
}

void pool2d(const Pool2d& in, std::int64_t target, double* y) {
  const auto s = pool2d_sources(in, target);
  std::fill_n(y, in.channels, 0.0);
  for (std::size_t j = 0; j < s.p.size(); ++j) {
    if (s.p[j] == 0) continue;
    const double* x = in.x + static_cast<std::int64_t>(j) * in.channels;
    for (std::int64_t c = 0; c < in.channels; ++c) y[c] += s.p[j] * x[c];
  }
}

void pool2d_backward(const Pool2d& in, std::int64_t target, const double* dy, double* dx, double* dlog_weight,
                     double* dsigma) {
  const auto s = pool2d_sources(in, target);
  std::vector<double> score(s.p.size(), 0.0);  // dy . x_j
  double mean = 0;                             // dy . y
  for (std::size_t j = 0; j < s.p.size(); ++j) {
    if (s.p[j] == 0) continue;
    const double* x = in.x + static_cast<std::int64_t>(j) * in.channels;
    for (std::int64_t c = 0; c < in.channels; ++c) score[j] += dy[c] * x[c];
    mean += s.p[j] * score[j];
  }
  *dsigma = 0;
  for (std::size_t j = 0; j < s.p.size(); ++j) {
    if (s.p[j] == 0) continue;
    double* out = dx + static_cast<std::int64_t>(j) * in.channels;
    for (std::int64_t c = 0; c < in.channels; ++c) out[c] += s.p[j] * dy[c];
    dlog_weight[j] += s.p[j] * (score[j] - mean);
    if (s.square[j] != 0) *dsigma += s.p[j] * (score[j] - mean) * s.square[j] / std::pow(in.sigma[target], 3);
  }
}

}  // namespace contextpool::reference
