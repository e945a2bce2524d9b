// Written by scripts/option_tables.py from src/nn/context_pool_options.toml; do not edit.
//
// The options of ContextPool1d and ContextPool2d.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace contextpool::nn {

struct ContextPoolOptions {
  // D of x [B, N, D], C of x [B, C, H, W].
  int64_t features = 0;
  // What predicts weights and sizes. "conv": two convolutions along the row or over the map. "mlp": each token by
  // itself. "attention": another name of weights nonlocal.
  std::string predictor = "conv";
  // How much a token counts in any average. "softmax": exp(l_j), normalised over the window. "unnormalized": as
  // predicted, of any sign: y_i = sum_j w_j g_ij x_j / sum_j g_ij. "uniform": all alike. "nonlocal": exp(theta(x_i)^T
  // phi(x_j)), time and memory being quadratic in the length.
  std::string weights = "softmax";
  // The window g_ij, with t = |i - j|. "gaussian": exp(-t^2 / (2 sigma_i^2)). "none": 1. "fixed_window": 1 for t <=
  // window, else 0. "adaptive_window": clamp(1 + (R_i - t) / 2, 0, 1), the predicted sizes being R_i. "random_sparse":
  // 1 for the token itself and for 8 places drawn once from (seed, layer, i, k), else 0.
  std::string locality = "gaussian";
  // How sizes come to lie in [0, 1]. "sigmoid": each by itself. "softmax": softmax over the tokens of the row, so not
  // causal. "channels": softmax over the weight and the size of a token.
  std::string size_norm = "sigmoid";
  // r: the largest size, as a share of the length n.
  double ratio = 0.1;
  // n; 0: each row's own length without padding, on maps half of height + width.
  int64_t reference_length = 0;
  // The length at which initial_sigma holds where size_range and reference_length are 0.
  int64_t usual_length = 1024;
  // The size at initialisation, in tokens or pixels.
  double initial_sigma = 4;
  // How far sizes may lie from the learnt one, as a difference of logarithms; 0: any up to r n, as in the paper.
  double size_range = 2;
  // The smallest size where size_range is not 0, as a share of initial_sigma.
  double size_floor = 0.25;
  // Channels between the predictor's two layers.
  int64_t hidden = 64;
  // Taps of the predictor's convolutions, on maps their side; odd unless causal.
  int64_t kernel = 3;
  // Slices of the features, each with its own weights and sizes.
  int64_t groups = 1;
  // Nothing that comes after a token reaches it; needs reference_length.
  bool causal = false;
  // Of fixed_window: how far it reaches, in tokens or pixels.
  double window = 4;
  // Of random_sparse: what its places are drawn from.
  int64_t seed = 0;
  // Of random_sparse: the layer's number, so that layers look at different places.
  int64_t layer = 0;
};

// With defaults for maps. Distances are those between pixels; a map cannot be causal.
struct ContextPool2dOptions : ContextPoolOptions {
  ContextPool2dOptions(int64_t channels = 0) {
    features = channels;
    ratio = 0.05;
    usual_length = 14;
    initial_sigma = 0.5;
    hidden = 24;
  }

  // A target on every n-th pixel; one number for both directions, or two. Target (ho, wo) sits on pixel (ho *
  // stride[0], wo * stride[1]).
  std::array<int64_t, 2> stride{1, 1};
};

// Calls f(name, value, help) for each option that a model passes on, named pool_*; the model sets the others itself.
template <typename Options, typename F>
void for_each_pool_option(Options& pool, F f) {
  f("pool_predictor", pool.predictor, "what predicts weights and sizes: conv, mlp or attention");
  f("pool_weights", pool.weights, "how much a token counts in any average: softmax, unnormalized, uniform or nonlocal");
  f("pool_locality", pool.locality,
    "the window g_ij, with t = |i - j|: gaussian, none, fixed_window, adaptive_window or random_sparse");
  f("pool_size_norm", pool.size_norm, "how sizes come to lie in [0, 1]: sigmoid, softmax or channels");
  f("pool_ratio", pool.ratio, "r: the largest size, as a share of the length n");
  f("pool_reference_length", pool.reference_length,
    "n; 0: each row's own length without padding, on maps half of height + width");
  f("pool_initial_sigma", pool.initial_sigma, "the size at initialisation, in tokens or pixels");
  f("pool_size_range", pool.size_range,
    "how far sizes may lie from the learnt one, as a difference of logarithms; 0: any up to r n, as in the paper");
  f("pool_size_floor", pool.size_floor,
    "the smallest size where pool_size_range is not 0, as a share of pool_initial_sigma");
  f("pool_hidden", pool.hidden, "channels between the predictor's two layers");
  f("pool_kernel", pool.kernel, "taps of the predictor's convolutions, on maps their side; odd unless causal");
  f("pool_groups", pool.groups, "slices of the features, each with its own weights and sizes");
  f("pool_window", pool.window, "of fixed_window: how far it reaches, in tokens or pixels");
  f("pool_seed", pool.seed, "of random_sparse: what its places are drawn from");
}

}  // namespace contextpool::nn
