// The operator in float64, written as its formula reads: what every kernel, test and benchmark is compared with.
#pragma once

#include <cstdint>
#include <vector>

namespace contextpool::reference {

// One sequence, row-major: x [tokens, channels], log_weight [tokens], sigma [targets].
struct Pool1d {
  std::int64_t tokens = 0;
  std::int64_t targets = 0;
  std::int64_t channels = 0;
  bool causal = false;
  const double* x = nullptr;
  const double* log_weight = nullptr;
  const double* sigma = nullptr;
};

// p_ij of one target for every token; all 0 where it has no source.
std::vector<double> pool1d_weights(const Pool1d& in, std::int64_t target);

// y [channels] of one target.
void pool1d(const Pool1d& in, std::int64_t target, double* y);

// One target's share of the gradients, given dy [channels]: added to dx [tokens, channels] and dlog_weight [tokens],
// stored in *dsigma.
void pool1d_backward(const Pool1d& in, std::int64_t target, const double* dy, double* dx, double* dlog_weight,
                     double* dsigma);

}  // namespace contextpool::reference
