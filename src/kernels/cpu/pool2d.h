// pool2d on plain memory: forward and backward, all dtypes. The instruction set is chosen at run time.
#pragma once

#include "kernels/cpu/parallel.h"
#include "kernels/pool2d.h"

namespace contextpool::cpu {

// y: the features of out_height x out_width targets
void pool2d(const Pool2d& in, void* y, const Parallel& parallel);

// dy, as y -> dx, as x; dlog_weight [batch, height, width]; dsigma [batch, out_height, out_width]
void pool2d_backward(const Pool2d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                     const Parallel& parallel);

}  // namespace contextpool::cpu
