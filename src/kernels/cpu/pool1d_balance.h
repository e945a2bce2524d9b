// The gradients of the log weights of a sequence, balanced: see kernels/balance.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/balance.h"
#include "kernels/cpu/vec.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

// dl from scores, (x_j - origin) . dx_j, and scalars, sum_i p_ij c_i and w_j, of each token. Tokens from `counting` on
// may hold anything and are no part of the sum.
template <class T>
void balance(std::int64_t tokens, std::int64_t counting, double* scores, double* scalars, T* dl) {
  double residue = 0;
  double mass = 0;
  double squares = 0;
  for (std::int64_t j = 0; j < tokens; ++j) {
    if (scalars[2 * j + 1] == 0) scores[j] = scalars[2 * j] = 0;  // no target's source: x may hold anything
    if (j >= counting) continue;
    residue += scores[j] - scalars[2 * j];
    mass += scalars[2 * j + 1];
    squares += scalars[2 * j + 1] * scalars[2 * j + 1];
  }
  // Where a gradient is NaN, the sum says nothing about the others.
  const bool balances = squares > 0 && std::isfinite(residue);
  const double factor = balances ? residue / (kCommonVariance * mass * mass + squares) : 0;
  for (std::int64_t j = 0; j < tokens; ++j) {
    const double own = scalars[2 * j + 1];
    dl[j] = static_cast<T>(scores[j] - scalars[2 * j] - factor * own * (kCommonVariance * mass + own));
  }
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
