// Statistics that show whether a predictor has collapsed: the sizes of the windows, and how many tokens count in one.
#pragma once

#include <optional>

#include "contextpool/nn/context_pool.h"

namespace contextpool::nn {

struct WindowStatistics {
  double sigma = 0;         // mean size, over rows or maps, groups and tokens
  double sigma_spread = 0;  // standard deviation between the tokens of a row or map, mean over these and groups
  double log_weight_spread = 0;
  double tokens = 0;  // effective number of tokens in a window, 1 / sum_j p_ij^2, mean over targets
};

// Whether the options give Gaussian windows with a weight for each token: what these statistics, and the pages of
// eval/looking.h, are of.
bool has_gaussian_windows(const ContextPoolOptions& options);

// Of rows (dims 1) or maps (dims 2, of stride 1 or 2) without padding, as forward_with_windows of ContextPool1d and
// ContextPool2d gives them; tokens from about 256 evenly spread targets of each. Nothing where there are no such
// windows.
std::optional<WindowStatistics> window_statistics(const ContextPoolOptions& options, const Windows& windows,
                                                  int64_t dims = 1);

// Which targets of a row [n] or map [h, w] those are, flat: 0, step, 2 step, ...
int64_t target_step(torch::IntArrayRef targets);

// The stride of a map of `targets` places on one of `sources` pixels, along one side: 1 or 2. Several larger strides
// give the same number of places.
int64_t stride_of(int64_t sources, int64_t targets);

}  // namespace contextpool::nn
