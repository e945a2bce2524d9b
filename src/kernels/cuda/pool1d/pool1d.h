// pool1d on device memory: forward and backward, all dtypes. Plain pointers, sizes, strides and a stream; nothing here
// allocates, waits for the device or reads a value from it, so every call can be captured in a CUDA graph.
// bf16 and f16: x and dy start at 16 bytes, as does every row of theirs (channels and strides are multiples of 8).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/pool1d.h"

namespace contextpool::cuda {

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
