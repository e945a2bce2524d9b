// The fixed random places that "random_sparse" looks at: the token itself and 8 drawn from (seed, layer, i, k), for the
// i-th real token of a row and k < 8, uniformly over the row's real tokens (causal: over those up to i). A place drawn
// twice counts once.
//
//   j = floor(n h(h(h(h(seed) + layer) + i) + k) / 2^32),   n tokens to choose from, h a mixing of 32 bits
#pragma once

#include <torch/torch.h>

#include "contextpool/nn/context_pool.h"

namespace contextpool::nn {

// targets: their places in the row, int64 [M]; padded [B, N] or undefined. Returns bool [B, 1, M, N] ([1, 1, M, N]
// where nothing is padded): true where the target looks.
torch::Tensor random_sources(const ContextPoolOptions& options, const torch::Tensor& targets, int64_t tokens,
                             const torch::Tensor& padded);

}  // namespace contextpool::nn
