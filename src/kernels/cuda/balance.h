// Over a sequence, the gradients of the log weights add up to 0: weights that all grow by the same factor change
// nothing. What float32 leaves of that sum, R, is rounding, and is taken off again. With w_j = sum_i p_ij, rounding
// that is alike for all targets makes an error that grows as w_j, and a token's own one of variance w_j^2. The most
// likely share of token j, the variance of the first a tenth of the second's, is
//   R w_j (W / 10 + w_j) / (W^2 / 10 + sum_k w_k^2),   W = sum_k w_k.
#pragma once

#include "kernels/cuda/backward.h"

namespace contextpool::cuda {

// Tokens of a thread block.
constexpr int kBalanced = 8192;
__host__ __device__ inline int balance_chunks(int tokens) { return (tokens + kBalanced - 1) / kBalanced; }

// dlog_weight = the sum of the `count` shares in partial, balanced.
cudaError_t balance(const Problem& in, const Backward& out, int count, cudaStream_t stream);

}  // namespace contextpool::cuda
