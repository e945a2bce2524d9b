// What one looks at to see whether a predictor is alive: the sizes of the windows, and how many tokens count in one.
#pragma once

#include <optional>

#include "contextpool/nn/context_pool.h"

namespace contextpool::nn {

struct WindowStatistics {
  double sigma = 0;         // mean size, over rows, groups and tokens
  double sigma_spread = 0;  // standard deviation between the tokens of a row, mean over rows and groups
  double log_weight_spread = 0;
  double tokens = 0;  // effective number of tokens in a window, 1 / sum_j p_ij^2, mean over targets
};

// Of rows without padding, as ContextPool1d::forward_with_windows gives them; tokens from at most 256 targets of each.
// Nothing where the options have no Gaussian windows with a weight for each token.
std::optional<WindowStatistics> window_statistics(const ContextPoolOptions& options, const Windows& windows);

}  // namespace contextpool::nn
