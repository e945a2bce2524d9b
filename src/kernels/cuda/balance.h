// Over a sequence, the gradients of the log weights add up to 0: weights that all grow by the same factor change
// nothing. What float32 has left of that sum is rounding, most of it of tokens that many targets see: it is taken off
// each token in proportion to (sum_i p_ij)^2.
#pragma once

#include "kernels/cuda/backward.h"

namespace contextpool::cuda {

// Tokens of a thread block.
constexpr int kBalanced = 8192;
__host__ __device__ inline int balance_chunks(int tokens) { return (tokens + kBalanced - 1) / kBalanced; }

// dlog_weight = the sum of the `count` shares in partial, balanced.
cudaError_t balance(const Problem& in, const Backward& out, int count, cudaStream_t stream);

}  // namespace contextpool::cuda
