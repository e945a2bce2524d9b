// Over a sequence, the gradients dl of the log weights add up to 0: weights that all grow by the same factor change
// nothing. What is left of that sum, R, is rounding, and is subtracted. With w_j = sum_i p_ij, rounding that all
// targets have in common makes an error that grows as w_j, and a token's own one of variance w_j^2. With the variance
// of the first kCommonVariance times that of the second, the most likely part of token j is
//   R w_j (kCommonVariance W + w_j) / (kCommonVariance W^2 + sum_k w_k^2),   W = sum_k w_k.
#pragma once

namespace contextpool {

inline constexpr double kCommonVariance = 0.1;

}  // namespace contextpool
