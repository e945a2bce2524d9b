// A row of features like those of the sequence; pool2d uses it too. The gradients of log weights and sizes do not
// change if it is taken off all x_j, and they are sums that nearly cancel where all features that a target sees are
// much the same: one token that outweighs the rest, or large features that differ little. In float32 what is left must
// not drown in rounding, so nodes are made of x - origin, and so are the gradients.
#pragma once

#include "kernels/cuda/pool1d/problem.cuh"

namespace contextpool::cuda {

// Fills in.origin: the features of the heaviest token, and of the first that is not masked where
// what comes later must not show (causal); 0 for those that are not finite.
// group_maxima: in.group_max is there. Of a map, pixels are tokens.
cudaError_t find_origin(const Problem& in, bool group_maxima, cudaStream_t stream);

}  // namespace contextpool::cuda
