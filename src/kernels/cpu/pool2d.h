// pool2d on plain memory: forward and backward, all dtypes. The instruction set is chosen at run time.
#pragma once

#include <cstdint>

#include "kernels/algorithm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/pool1d.h"

namespace contextpool::cpu {

// Features are dense in one of two orders, [batch, channels, height, width] or, channels last, [batch, height, width,
// channels]; whatever is written has the order of x. log_weight and sigma are double for f64, else float, and
// contiguous. The algorithm may be anything but pyramid.
struct Pool2d {
  std::int64_t batch = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t out_height = 0;  // ceil(height / stride_h)
  std::int64_t out_width = 0;
  std::int64_t stride_h = 1;
  std::int64_t stride_w = 1;
  bool channels_last = false;
  Algorithm algorithm = Algorithm::automatic;
  Type type = Type::f32;
  const void* x = nullptr;
  const void* log_weight = nullptr;  // [batch, height, width]
  const void* sigma = nullptr;       // [batch, out_height, out_width]
};

// y: the features of out_height x out_width targets
void pool2d(const Pool2d& in, void* y, const Parallel& parallel);

// dy, as y -> dx, as x; dlog_weight [batch, height, width]; dsigma [batch, out_height, out_width]
void pool2d_backward(const Pool2d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                     const Parallel& parallel);

}  // namespace contextpool::cpu
