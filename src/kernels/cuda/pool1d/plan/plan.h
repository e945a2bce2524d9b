// Which sources matter to each target, and at which level of the tree.
#pragma once

#include "kernels/cuda/pool1d/problem.cuh"

namespace contextpool::cuda {

// How exact the sums must be, in powers of two.
struct Precision {
  float cut;        // sources that together weigh less than 2^-cut of the target's sum are left out
  float tolerance;  // bound on log2 of a block's interpolation error against the target's sum
  float reach;      // blocks start at no more than this many sigma
  bool narrow;      // the storage type's range asks for exponents close to the largest term
};

// Whether planning needs nothing made before: sequences of up to kLongSequence tokens, and no tree.
inline bool plans_alone(const Problem& in) { return !in.tree.exists() && in.tokens <= kLongSequence; }

// Fills in.group_max, unless plans_alone(), and, with a tree, in.block_log, in.block_top and in.may_use_tree; clears
// counts [batch, chunks, kClasses].
cudaError_t weigh_tokens(const Problem& in, const Precision& precision, int* counts, cudaStream_t stream);

// Fills in.plan and, with a tree, counts. With a tree, the kernel that comes next may start before the plan is made:
// see let_next_start().
cudaError_t plan_targets(const Problem& in, const Precision& precision, int* counts, cudaStream_t stream);

}  // namespace contextpool::cuda
