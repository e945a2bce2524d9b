// Picks the kernels for the machine the program runs on.
#include "kernels/cpu/pool2d.h"

#include "kernels/cpu/pool2d_arch.h"

namespace contextpool::cpu {
namespace {

struct Kernels {
  decltype(&portable::pool2d) forward = portable::pool2d;
  decltype(&portable::pool2d_backward) backward = portable::pool2d_backward;

  Kernels() {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
      forward = avx512::pool2d;
      backward = avx512::pool2d_backward;
    } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
      forward = avx2::pool2d;
      backward = avx2::pool2d_backward;
    }
#endif
  }
};

const Kernels& kernels() {
  static const Kernels chosen;
  return chosen;
}

}  // namespace

void pool2d(const Pool2d& in, void* y, const Parallel& parallel) { kernels().forward(in, y, parallel); }

void pool2d_backward(const Pool2d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                     const Parallel& parallel) {
  kernels().backward(in, dy, dx, dlog_weight, dsigma, parallel);
}

}  // namespace contextpool::cpu
