// What the words of ContextPoolOptions mean for the parts of the module.
#pragma once

#include <string>

#include "contextpool/nn/context_pool.h"

namespace contextpool::nn {

// weights "nonlocal" and predictor "attention" are two names of one thing.
bool pairwise_weights(const ContextPoolOptions& options);
// Whether the predictor gives a weight channel, and a size channel, to each group.
bool predicts_weights(const ContextPoolOptions& options);
bool predicts_sizes(const ContextPoolOptions& options);
// Whether sizes stay above smallest_size and within size_range of the learnt one; else they are the paper's.
bool bounded_sizes(const ContextPoolOptions& options);
// The largest share of the limit at which sizes start.
inline constexpr double kLargestStart = 0.5;
// Bounded sizes stay above this: a window that closes on its own token has no gradient left to open again.
double smallest_size(const ContextPoolOptions& options);
// Bounded sizes have at least this limit, so that initial_sigma holds on the shortest rows too.
double smallest_limit(const ContextPoolOptions& options);
// The largest size at reference_length.
double reference_limit(const ContextPoolOptions& options);
int64_t predicted_channels(const ContextPoolOptions& options);
// "ContextPool1d(features=512, predictor=conv, ...)".
std::string describe(const std::string& name, const ContextPoolOptions& options);

}  // namespace contextpool::nn
