// The kernels of pool1d, once per instruction set; pool1d.cpp picks one.
#pragma once

#include "kernels/cpu/pool1d.h"

namespace contextpool::cpu {

#define CONTEXTPOOL_DECLARE(arch)                                                                   \
  namespace arch {                                                                                  \
  void pool1d(const Pool1d& in, void* y, const Parallel& parallel);                                 \
  void pool1d_backward(const Pool1d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma, \
                       const Parallel& parallel);                                                   \
  }
CONTEXTPOOL_DECLARE(avx512)
CONTEXTPOOL_DECLARE(avx2)
CONTEXTPOOL_DECLARE(portable)
#undef CONTEXTPOOL_DECLARE

}  // namespace contextpool::cpu
