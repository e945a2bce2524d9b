// Picks the kernels for the machine the program runs on.
#include "kernels/cpu/short_convolution.h"

#include "kernels/cpu/instructions.h"
#include "kernels/cpu/short_convolution_arch.h"

namespace contextpool::cpu {
namespace {

struct Kernels {
  decltype(&portable::short_convolution) forward = portable::short_convolution;
  decltype(&portable::short_convolution_backward) backward = portable::short_convolution_backward;
};

Kernels kernels_for([[maybe_unused]] Instructions set) {
#ifdef __x86_64__
  if (set == Instructions::avx512) return {avx512::short_convolution, avx512::short_convolution_backward};
  if (set == Instructions::avx2) return {avx2::short_convolution, avx2::short_convolution_backward};
#endif
  return {};
}

const Kernels& kernels() {
  static const Kernels chosen = kernels_for(instructions());
  return chosen;
}

}  // namespace

void short_convolution(const ShortConvolution& in, void* y, const Parallel& parallel) {
  kernels().forward(in, y, parallel);
}

void short_convolution_backward(const ShortConvolution& in, const void* dy, void* dx, void* dweight, void* dbias,
                                const Parallel& parallel) {
  kernels().backward(in, dy, dx, dweight, dbias, parallel);
}

}  // namespace contextpool::cpu
