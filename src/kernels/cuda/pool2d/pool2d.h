// pool2d on device memory: forward and backward, all dtypes. Plain pointers, sizes and a stream; nothing here
// allocates, waits for the device or reads a value from it, so every call can be captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/algorithm.h"
#include "kernels/type.h"

namespace contextpool::cuda {

// Features are dense in one of two orders, [batch, channels, height, width] or, channels last, [batch, height, width,
// channels]; whatever is written has the order of x. log_weight and sigma are double for f64, else float, and
// contiguous. The algorithm may be anything but pyramid. Strides are at most as large as the sides they divide.
struct Pool2d {
  std::int64_t batch = 0;
  std::int64_t channels = 0;
  int height = 0;  // up to kMaxSide
  int width = 0;
  int out_height = 0;  // ceil(height / stride_h)
  int out_width = 0;
  int stride_h = 1;
  int stride_w = 1;
  bool channels_last = false;
  Algorithm algorithm = Algorithm::automatic;
  Type type = Type::f32;
  const void* x = nullptr;
  const void* log_weight = nullptr;  // [batch, height, width]
  const void* sigma = nullptr;       // [batch, out_height, out_width]

  static constexpr int kMaxSide = 1 << 15;
  std::int64_t pixels() const { return static_cast<std::int64_t>(height) * width; }
  std::int64_t targets() const { return static_cast<std::int64_t>(out_height) * out_width; }
};

// Whether a launch has room for all thread blocks (at most 2^31 - 1).
bool pool2d_fits(const Pool2d& in);

// Bytes of scratch memory the call below with the same arguments needs (256-byte aligned).
std::size_t pool2d_workspace(const Pool2d& in);
std::size_t pool2d_backward_workspace(const Pool2d& in);

// y: the features of out_height x out_width targets
cudaError_t pool2d(const Pool2d& in, void* y, void* workspace, cudaStream_t stream);

// dy, as y -> dx, as x; dlog_weight [batch, height, width]; dsigma [batch, out_height, out_width]
cudaError_t pool2d_backward(const Pool2d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                            void* workspace, cudaStream_t stream);

}  // namespace contextpool::cuda
