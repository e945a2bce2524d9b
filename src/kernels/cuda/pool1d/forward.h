// y of all targets, tile by tile.
#pragma once

#include "kernels/cuda/pool1d/work.cuh"

namespace contextpool::cuda {

// near leaves in y the mean over the near sources and in near_mass [batch, targets] their weight; far completes them.
template <typename T>
cudaError_t forward_tiles(const Problem& in, Part part, T* y, float* near_mass, cudaStream_t stream);

}  // namespace contextpool::cuda
