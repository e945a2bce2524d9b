// Over a sequence, the gradients dl of the log weights add up to 0: weights that all grow by the same factor change
// nothing. What is left of that sum, R, is rounding, and is taken off again. With w_j = sum_i p_ij, rounding that is
// alike for all targets makes an error that grows as w_j, and a token's own one of variance w_j^2. The most likely
// share of token j, the variance of the first kAlike times the second's, is
//   R w_j (kAlike W + w_j) / (kAlike W^2 + sum_k w_k^2),   W = sum_k w_k.
#pragma once

namespace contextpool {

inline constexpr double kAlike = 0.1;

}  // namespace contextpool
