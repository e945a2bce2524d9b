// Picks the kernels for the machine the program runs on.
#include "kernels/cpu/pool1d.h"

#include "kernels/cpu/pool1d_arch.h"

namespace contextpool::cpu {
namespace {

struct Kernels {
  decltype(&portable::pool1d) forward = portable::pool1d;
  decltype(&portable::pool1d_backward) backward = portable::pool1d_backward;

  Kernels() {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
      forward = avx512::pool1d;
      backward = avx512::pool1d_backward;
    } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
      forward = avx2::pool1d;
      backward = avx2::pool1d_backward;
    }
#endif
  }
};

const Kernels& kernels() {
  static const Kernels chosen;
  return chosen;
}

}  // namespace

void pool1d(const Pool1d& in, void* y, const Parallel& parallel) { kernels().forward(in, y, parallel); }

void pool1d_backward(const Pool1d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                     const Parallel& parallel) {
  kernels().backward(in, dy, dx, dlog_weight, dsigma, parallel);
}

}  // namespace contextpool::cpu
