// pool1d on plain memory: forward and backward, all dtypes, all algorithms. The instruction set is chosen at run time.
#pragma once

#include "kernels/cpu/parallel.h"
#include "kernels/pool1d.h"

namespace contextpool::cpu {

// y [batch, targets, channels]
void pool1d(const Pool1d& in, void* y, const Parallel& parallel);

// dy [batch, targets, channels] -> dx [batch, tokens, channels], dlog_weight [batch, tokens], dsigma [batch, targets]
void pool1d_backward(const Pool1d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                     const Parallel& parallel);

}  // namespace contextpool::cpu
