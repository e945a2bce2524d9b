// One problem of pool2d, as the kernels of every device take it: sizes, options and plain pointers.
#pragma once

#include <cstdint>

#include "kernels/algorithm.h"
#include "kernels/type.h"

namespace contextpool {

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

  std::int64_t pixels() const { return height * width; }
  std::int64_t targets() const { return out_height * out_width; }
};

}  // namespace contextpool
