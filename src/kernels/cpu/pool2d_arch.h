// The kernels of pool2d, once per instruction set; pool2d.cpp picks one.
#pragma once

#include "kernels/cpu/pool2d.h"

namespace contextpool::cpu {

#define CONTEXTPOOL_DECLARE(arch)                                                                   \
  namespace arch {                                                                                  \
  void pool2d(const Pool2d& in, void* y, const Parallel& parallel);                                 \
  void pool2d_backward(const Pool2d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma, \
                       const Parallel& parallel);                                                   \
  }
CONTEXTPOOL_DECLARE(avx512)
CONTEXTPOOL_DECLARE(avx2)
CONTEXTPOOL_DECLARE(portable)
#undef CONTEXTPOOL_DECLARE

}  // namespace contextpool::cpu
