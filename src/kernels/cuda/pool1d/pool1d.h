// pool1d on device memory: forward and backward, all dtypes. Plain pointers, sizes, strides and a stream; nothing here
// allocates, waits for the device or reads a value from it, so every call can be captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/algorithm.h"
#include "kernels/type.h"

namespace contextpool::cuda {

// Rows of channels are contiguous; strides count elements. log_weight and sigma are double for f64, else float, and
// contiguous, as is everything written. bf16 and f16: x and dy start at 16 bytes, as does every row of theirs (channels
// and strides are multiples of 8).
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

// Bytes (256-byte aligned) of what the forward makes and the backward can use again: the plan and the tree. And of the
// backward's scratch memory, given that or not.
std::size_t pool1d_kept(const Pool1d& in);
std::size_t pool1d_backward_workspace(const Pool1d& in, bool kept);

// y [batch, targets, channels]
cudaError_t pool1d(const Pool1d& in, void* y, void* kept, cudaStream_t stream);

// dy [batch, targets, channels] -> dx [batch, tokens, channels], dlog_weight [batch, tokens], dsigma [batch, targets].
// kept: from the forward of the same inputs, or null.
cudaError_t pool1d_backward(const Pool1d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                            const void* kept, void* workspace, cudaStream_t stream);

}  // namespace contextpool::cuda
