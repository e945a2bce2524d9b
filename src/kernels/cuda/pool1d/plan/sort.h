// The order in which targets are by_tile.
#pragma once

#include "kernels/cuda/pool1d/problem.cuh"

namespace contextpool::cuda {

int sort_chunks(int targets);
int max_sorted_tiles(int targets, const Tree& tree);

// Fills in.class_tile and in.sorted; counts: [batch, chunks, kClasses], from plan_targets.
cudaError_t sort_targets(const Problem& in, const int* counts, cudaStream_t stream);

}  // namespace contextpool::cuda
