// pool1d on plain memory: forward and backward, all dtypes, all algorithms. The instruction set is chosen at run time.
#pragma once

#include <cstdint>

#include "kernels/algorithm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/type.h"

namespace contextpool::cpu {

// Rows of channels are contiguous; strides count elements. log_weight and sigma are double for f64, else float, and
// contiguous, as is everything written.
struct Pool1d {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t targets = 0;
  std::int64_t channels = 0;
  bool causal = false;
  Algorithm algorithm = Algorithm::automatic;
  Type type = Type::f32;
  const void* x = nullptr;  // [batch, tokens, channels]
  std::int64_t x_batch_stride = 0;
  std::int64_t x_token_stride = 0;
  const void* log_weight = nullptr;  // [batch, tokens]
  const void* sigma = nullptr;       // [batch, targets]
};

// y [batch, targets, channels]
void pool1d(const Pool1d& in, void* y, const Parallel& parallel);

// dy [batch, targets, channels] -> dx [batch, tokens, channels], dlog_weight [batch, tokens], dsigma [batch, targets]
void pool1d_backward(const Pool1d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                     const Parallel& parallel);

}  // namespace contextpool::cpu
