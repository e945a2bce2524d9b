// The tree of blocks: up from the tokens (moments), and its transpose, down (gradients).
#pragma once

#include "kernels/cuda/pool1d/problem.cuh"

namespace contextpool::cuda {

Tree make_tree(int tokens, int batch);

// Fills in.nodes and in.mass, given in.block_log and in.may_use_tree: first the levels that thread blocks make from the
// tokens, which may run beside the kernel launched just before, then the levels above them.
template <typename T>
cudaError_t raise_tokens(const Problem& in, cudaStream_t stream);
template <typename T>
cudaError_t raise_blocks(const Problem& in, cudaStream_t stream);

// Adds up the parts of each block's gradient [batch, part_blocks, 8, gradient_width(channels)] and what its ancestors
// hold for it; complete at the lowest level only.
cudaError_t push_down(const Problem& in, float* gradient, cudaStream_t stream);

}  // namespace contextpool::cuda
