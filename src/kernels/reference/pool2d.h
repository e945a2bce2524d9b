// The 2-D operator in float64, written as its formula reads: what every kernel, test and benchmark is compared with.
#pragma once

#include <cstdint>
#include <vector>

namespace contextpool::reference {

// One map, channels last: x [height, width, channels], log_weight [height, width], sigma [ceil(height / stride_h),
// ceil(width / stride_w)]. Targets are counted along the rows of sigma.
struct Pool2d {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t stride_h = 1;
  std::int64_t stride_w = 1;
  std::int64_t channels = 0;
  const double* x = nullptr;
  const double* log_weight = nullptr;
  const double* sigma = nullptr;
};

// d^2 and p_ij of one target for every pixel; p is all 0 where it has no source.
struct Sources {
  std::vector<double> square, p;
};
Sources pool2d_sources(const Pool2d& in, std::int64_t target);

// y [channels] of one target.
void pool2d(const Pool2d& in, std::int64_t target, double* y);

// One target's share of the gradients, given dy [channels]: added to dx [height, width, channels] and dlog_weight
// [height, width], stored in *dsigma.
void pool2d_backward(const Pool2d& in, std::int64_t target, const double* dy, double* dx, double* dlog_weight,
                     double* dsigma);

}  // namespace contextpool::reference
