// The tree of blocks: up from the tokens (moments), and its transpose, down (gradients).
#pragma once

#include "kernels/cuda/common.cuh"

namespace contextpool::cuda {

Tree make_tree(int tokens);

// Fills in.nodes, in.mass and in.block_log.
template <typename T>
cudaError_t build_tree(const Problem& in, cudaStream_t stream);

// Adds up the parts of each block's gradient [batch, part_blocks, 8, channels] (and [batch, part_blocks, 8] of the mass)
// and what its ancestors hold for it; complete at the lowest level only.
cudaError_t push_down(const Problem& in, float* gradient, float* mass_gradient, cudaStream_t stream);

}  // namespace contextpool::cuda
