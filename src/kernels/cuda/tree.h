// The tree of blocks: up from the tokens (moments), and its transpose, down (gradients).
#pragma once

#include "kernels/cuda/common.cuh"

namespace contextpool::cuda {

Tree make_tree(int tokens, int batch);

// Fills in.nodes and in.mass, given in.block_log and the sorted targets.
template <typename T>
cudaError_t build_tree(const Problem& in, cudaStream_t stream);

// Adds up the parts of each block's gradient [batch, part_blocks, 8, gradient_width(channels)] and what its ancestors
// hold for it; complete at the lowest level only.
cudaError_t push_down(const Problem& in, float* gradient, cudaStream_t stream);

}  // namespace contextpool::cuda
