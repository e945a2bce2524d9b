// Picks the kernels for the machine the program runs on.
#include "kernels/cpu/pool2d.h"

#include "kernels/cpu/instructions.h"
#include "kernels/cpu/pool2d_arch.h"

namespace contextpool::cpu {
namespace {

struct Kernels {
  decltype(&portable::pool2d) forward = portable::pool2d;
  decltype(&portable::pool2d_backward) backward = portable::pool2d_backward;
};

Kernels kernels_for([[maybe_unused]] Instructions set) {
#ifdef __x86_64__
  if (set == Instructions::avx512) return {avx512::pool2d, avx512::pool2d_backward};
  if (set == Instructions::avx2) return {avx2::pool2d, avx2::pool2d_backward};
#endif
  return {};
}

const Kernels& kernels() {
  static const Kernels chosen = kernels_for(instructions());
  return chosen;
}

}  // namespace

void pool2d(const Pool2d& in, void* y, const Parallel& parallel) { kernels().forward(in, y, parallel); }

void pool2d_backward(const Pool2d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                     const Parallel& parallel) {
  kernels().backward(in, dy, dx, dlog_weight, dsigma, parallel);
}

}  // namespace contextpool::cpu
