// Which sources matter to each target, and at which level of the tree.
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

// Fills in.quad_log, in.plan and, with a tree, in.block_log, in.block_top, in.wide and counts [batch, chunks,
// kClasses]. With a tree, the kernel that comes next may start before the plan is made: see let_next_start().
cudaError_t plan_targets(const Problem& in, const Precision& precision, int* counts, cudaStream_t stream);

}  // namespace contextpool::cuda
