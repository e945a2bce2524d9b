// What ContextPool does with predicted weights and sizes, for every weighting and locality:
//
//   y_i = sum_j exp(l_ij) g_ij x_j / sum_j exp(l_ij) g_ij
//
// with l_ij = l_j (0 for "uniform"), or theta(x_i)^T phi(x_j) for "nonlocal"; "unnormalized" weights w multiply the
// features, which are then averaged uniformly. t is the distance of i and j, R_i the predicted size:
//
//   gaussian exp(-t^2 / (2 R_i^2)),  none 1,  fixed_window t <= R,  adaptive_window clamp(1 + (R_i - t) / 2, 0, 1),
//   random_sparse 1 for i itself and for 8 drawn j
#pragma once

#include <torch/torch.h>

#include "contextpool/nn/context_pool.h"

namespace contextpool::nn {

struct Prediction {
  torch::Tensor weights;        // [B, G, S]: l, or w of "unnormalized"; undefined for "uniform" and "nonlocal"
  torch::Tensor sizes;          // [B, G, M], 0 at padded targets; undefined where the locality has none
  torch::Tensor queries, keys;  // [B, M, D] and [B, S, D]: theta(x_i) and phi(x_j) of "nonlocal", else undefined
};

// x [B, N, D], 0 at padded tokens; padded [B, N] or undefined. The targets are the last `targets` tokens.
torch::Tensor pool_row(const ContextPoolOptions& options, const torch::Tensor& x, const Prediction& prediction,
                       const torch::Tensor& padded, int64_t targets);

// x [B, C, H, W], 0 at padded pixels; padded [B, H, W] or undefined. S = H W, M = Ho Wo, both row by row.
torch::Tensor pool_map(const ContextPool2dOptions& options, const torch::Tensor& x, const Prediction& prediction,
                       const torch::Tensor& padded);

// The values [..., H, W] of a map at its targets, [..., Ho, Wo].
torch::Tensor at_targets(const ContextPool2dOptions& options, const torch::Tensor& map);

// sigma of the predicted channels [B, channels, tokens]: [B, G, tokens]. length: n as a tensor of no dimension, or
// [B, 1, 1]. With bounded sizes
//
//   sigma = f + (L - f) sigmoid(c + size),   f = initial_sigma / 4,   L = max(r n, 2 initial_sigma),
//   c such that size 0 gives initial_sigma at any n;
//
// else sigma = r n s, with s in [0, 1] as size_norm says.
torch::Tensor predicted_sizes(const ContextPoolOptions& options, const torch::Tensor& channels,
                              const torch::Tensor& padded, const torch::Tensor& length);

// The prediction as forward_with_windows shows it, for sources and targets of these shapes ({N} or {H, W}).
Windows windows_of(const ContextPoolOptions& options, const torch::Tensor& x, const Prediction& prediction,
                   const torch::Tensor& padded, torch::IntArrayRef sources, torch::IntArrayRef targets);

// Throws, for inputs of another dtype than a module's parameters, what to do about it; for use where a layer failed.
void explain_dtype(const char* who, const torch::nn::Module& module, const torch::Tensor& x);

}  // namespace contextpool::nn
