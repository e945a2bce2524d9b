// Which sources matter to each target, at which level of the tree, and the order in which targets are tiled.
#pragma once

#include "kernels/cuda/common.cuh"

namespace contextpool::cuda {

// How exact the sums must be, in powers of two.
struct Precision {
  float cut;        // sources that together weigh less than 2^-cut of the target's sum are left out
  float tolerance;  // bound on log2 of a block's interpolation error against the target's sum
  float reach;      // blocks start at no more than this many sigma
  bool narrow;      // the storage type's range asks for exponents close to the largest term
};

int sort_chunks(int targets);
int max_sorted_tiles(int targets, const Tree& tree);

// Fills in.quad_log, in.plan and, with a tree, in.block_log, in.wide and counts [batch, chunks, kClasses]. With a tree,
// the kernel that comes next may start before the plan is made: see let_next_start().
cudaError_t plan_targets(const Problem& in, const Precision& precision, int* counts, cudaStream_t stream);

// Fills in.class_tile and in.sorted.
cudaError_t sort_targets(const Problem& in, const int* counts, cudaStream_t stream);

}  // namespace contextpool::cuda
