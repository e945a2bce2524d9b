// Area attention (Li et al. 2019): the memory holds, besides each key, every area of up to `width` consecutive keys.
// The key of an area is the mean of its keys, its value the sum of its values. An area that touches padding does not
// exist, nor, in causal attention, one that touches a token after the query.
//
// An area is known by its last token and its width, so that a new token adds areas and changes none: they can be kept
// in a cache. The sum of an area is that of the one narrower by a token, plus that token: one addition for an area, as
// with a summed-area table, but without the cancellation of its large sums.
#pragma once

#include <torch/torch.h>

namespace contextpool::nn {

struct Sight;

// The areas that end at the last tokens of x [batch, tokens, heads, n]: [batch, new, width, heads, n], their means or
// their sums. Those that begin before the row hold a part; area_attention does not see them.
torch::Tensor area_sums(const torch::Tensor& x, int64_t width, int64_t fresh);
torch::Tensor area_means(const torch::Tensor& x, int64_t width, int64_t fresh);

// q [batch, heads, queries, n]; keys and values of all areas, [batch, tokens, width, heads, n]. Of `sight`, real is
// [batch, tokens], and the queries are those of the last tokens where it is causal. Returns [batch, heads, queries, n].
torch::Tensor area_attention(const torch::Tensor& q, const torch::Tensor& keys, const torch::Tensor& values,
                             const Sight& sight);

}  // namespace contextpool::nn
