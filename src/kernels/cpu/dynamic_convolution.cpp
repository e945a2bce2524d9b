// Picks the kernels for the machine the program runs on.
#include "kernels/cpu/dynamic_convolution.h"

#include "kernels/cpu/dynamic_convolution_arch.h"
#include "kernels/cpu/instructions.h"

namespace contextpool::cpu {
namespace {

struct Kernels {
  decltype(&portable::dynamic_convolution) forward = portable::dynamic_convolution;
  decltype(&portable::dynamic_convolution_backward) backward = portable::dynamic_convolution_backward;
};

Kernels kernels_for([[maybe_unused]] Instructions set) {
#ifdef __x86_64__
  if (set == Instructions::avx512) return {avx512::dynamic_convolution, avx512::dynamic_convolution_backward};
  if (set == Instructions::avx2) return {avx2::dynamic_convolution, avx2::dynamic_convolution_backward};
#endif
  return {};
}

const Kernels& kernels() {
  static const Kernels chosen = kernels_for(instructions());
  return chosen;
}

}  // namespace

void dynamic_convolution(const DynamicConvolution& in, void* y, const Parallel& parallel) {
  kernels().forward(in, y, parallel);
}

void dynamic_convolution_backward(const DynamicConvolution& in, const void* dy, const DynamicConvolutionGradients& out,
                                  const Parallel& parallel) {
  kernels().backward(in, dy, out, parallel);
}

}  // namespace contextpool::cpu
