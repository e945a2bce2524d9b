// pool2d on device memory: forward and backward, all dtypes. Plain pointers, sizes and a stream; nothing here
// allocates, waits for the device or reads a value from it, so every call can be captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/pool2d.h"

namespace contextpool::cuda {

// Sides of a map have up to so many pixels, and strides are at most as large as the sides they divide.
constexpr int kMaxSide = 1 << 15;

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
