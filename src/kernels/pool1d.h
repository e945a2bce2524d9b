// One problem of pool1d, as the kernels of every device take it: sizes, options and plain pointers.
#pragma once

#include <cstdint>

#include "kernels/algorithm.h"
#include "kernels/type.h"

namespace contextpool {

// Rows of channels are contiguous; strides count elements. log_weight and sigma are double for f64, else float, and
// contiguous, as is everything written. Sequences may be groups of the channels of others: of `groups` sequences that
// follow each other, x is x_group_stride apart, and y, dy and dx have their channels side by side in each row.
struct Pool1d {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t targets = 0;
  std::int64_t channels = 0;
  bool causal = false;
  Algorithm algorithm = Algorithm::automatic;
  Type type = Type::f32;
  const void* x = nullptr;          // [batch, tokens, channels]
  std::int64_t x_batch_stride = 0;  // of `groups` sequences
  std::int64_t x_token_stride = 0;
  std::int64_t groups = 1;
  std::int64_t x_group_stride = 0;
  const void* log_weight = nullptr;  // [batch, tokens]
  const void* sigma = nullptr;       // [batch, targets]
};

}  // namespace contextpool
