// The kernels of short_convolution, once per instruction set; short_convolution.cpp picks one.
#pragma once

#include "kernels/cpu/short_convolution.h"

namespace contextpool::cpu {

#define CONTEXTPOOL_DECLARE(arch)                                                                                   \
  namespace arch {                                                                                                  \
  void short_convolution(const ShortConvolution& in, void* y, const Parallel& parallel);                            \
  void short_convolution_backward(const ShortConvolution& in, const void* dy, void* dx, void* dweight, void* dbias, \
                                  const Parallel& parallel);                                                        \
  }
CONTEXTPOOL_DECLARE(avx512)
CONTEXTPOOL_DECLARE(avx2)
CONTEXTPOOL_DECLARE(portable)
#undef CONTEXTPOOL_DECLARE

}  // namespace contextpool::cpu
