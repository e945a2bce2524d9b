// Picks the kernels for the machine the program runs on.
#include "kernels/cpu/pool1d.h"

#include "kernels/cpu/instructions.h"
#include "kernels/cpu/pool1d_arch.h"

namespace contextpool::cpu {
namespace {

struct Kernels {
  decltype(&portable::pool1d) forward = portable::pool1d;
  decltype(&portable::pool1d_backward) backward = portable::pool1d_backward;
};

Kernels kernels_for([[maybe_unused]] Instructions set) {
#ifdef __x86_64__
  if (set == Instructions::avx512) return {avx512::pool1d, avx512::pool1d_backward};
  if (set == Instructions::avx2) return {avx2::pool1d, avx2::pool1d_backward};
#endif
  return {};
}

const Kernels& kernels() {
  static const Kernels chosen = kernels_for(instructions());
  return chosen;
}

}  // namespace

void pool1d(const Pool1d& in, void* y, const Parallel& parallel) { kernels().forward(in, y, parallel); }

void pool1d_backward(const Pool1d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                     const Parallel& parallel) {
  kernels().backward(in, dy, dx, dlog_weight, dsigma, parallel);
}

}  // namespace contextpool::cpu
