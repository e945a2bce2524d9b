// pool1d in float64 as its formula reads, one thread block per target (forward, c and dsigma) or token (dx, dl): exact,
// bitwise repeatable, quadratic in N at worst. For checks, not for speed.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/pool1d/pool1d.h"

namespace contextpool::cuda {

std::size_t plain_workspace(const Pool1d& in);
cudaError_t plain_forward(const Pool1d& in, double* y, cudaStream_t stream);
cudaError_t plain_backward(const Pool1d& in, const double* dy, double* dx, double* dlog_weight, double* dsigma,
                           void* workspace, cudaStream_t stream);

}  // namespace contextpool::cuda
