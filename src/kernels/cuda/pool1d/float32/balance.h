// The gradients of the log weights in float32, balanced: see kernels/balance.h.
#pragma once

#include "kernels/balance.h"
#include "kernels/cuda/pool1d/backward.h"

namespace contextpool::cuda {

__host__ __device__ inline int balance_chunks(int tokens) { return (tokens + kBalanced - 1) / kBalanced; }

// dlog_weight = the sum of the `count` shares in partial, balanced.
cudaError_t balance(const Problem& in, const Backward& out, int count, cudaStream_t stream);

}  // namespace contextpool::cuda
