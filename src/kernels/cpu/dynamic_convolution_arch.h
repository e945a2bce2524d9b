// The kernels of dynamic_convolution, once per instruction set; dynamic_convolution.cpp picks one.
#pragma once

#include "kernels/cpu/dynamic_convolution.h"

namespace contextpool::cpu {

#define CONTEXTPOOL_DECLARE(arch)                                                                      \
  namespace arch {                                                                                     \
  void dynamic_convolution(const DynamicConvolution& in, void* y, const Parallel& parallel);           \
  void dynamic_convolution_backward(const DynamicConvolution& in, const void* dy,                      \
                                    const DynamicConvolutionGradients& out, const Parallel& parallel); \
  }
CONTEXTPOOL_DECLARE(avx512)
CONTEXTPOOL_DECLARE(avx2)
CONTEXTPOOL_DECLARE(portable)
#undef CONTEXTPOOL_DECLARE

}  // namespace contextpool::cpu
