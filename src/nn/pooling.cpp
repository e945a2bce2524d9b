#include "nn/pooling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "contextpool/ops/pool1d.h"
#include "contextpool/ops/pool2d.h"
#include "nn/average.h"
#include "nn/context_pool_options.h"
#include "nn/random_sources.h"

namespace contextpool::nn {
namespace {

using torch::Tensor;

constexpr double kAbsent = -std::numeric_limits<double>::infinity();  // the log weight of a token that does not exist
constexpr double kUnboundedSize = 1e15;  // a size so large that the Gaussian is 1 to the last bit of float64
constexpr double kSmallestSize = 1e-6;   // a size below which the Gaussian has no neighbour left
constexpr double kRamp = 2;              // tokens over which the edge of an adaptive window falls to 0

// Where targets and sources are: their distances [M, S], or [S] where they are the same for every target, and, where
// something comes after a target, which sources do.
struct Places {
  Tensor distance, after;
};

// g_ij of the localities that are a function of the distance.
Tensor window(const ContextPoolOptions& options, const Places& places, const Tensor& sizes) {
  Tensor g;
  if (options.locality == "fixed_window") {
    g = (places.distance <= options.window).to(places.distance.scalar_type());
  } else if (options.locality == "adaptive_window") {
    g = (1 + (sizes.unsqueeze(-1) - places.distance) / kRamp).clamp(0, 1);
  } else {
    g = torch::ones_like(places.distance);
  }
  return places.after.defined() ? g.masked_fill(places.after, 0) : g;
}

// The farthest source of a window of bounded reach.
int64_t reach(const ContextPoolOptions& options) {
  return static_cast<int64_t>(
      std::ceil(options.locality == "fixed_window" ? options.window : reference_limit(options) + kRamp));
}

// Windows of bounded reach, one source of every target at a time: work in proportion to the window, not to the row.
// x [B, G, N, D], log_weight [B, G, N]; the targets are the last M tokens.
Tensor pool_windows(const ContextPoolOptions& options, const Tensor& x, const Tensor& log_weight, const Tensor& sizes,
                    int64_t targets) {
  const auto first = x.size(2) - targets, left = reach(options), right = options.causal ? 0 : left;
  const auto start = std::max<int64_t>(first - left, 0), before = std::max<int64_t>(left - first, 0);
  const auto taps = left + 1 + right;
  const auto x_near = torch::constant_pad_nd(x.slice(2, start), {0, 0, before, right});
  const auto l_near = torch::constant_pad_nd(log_weight.slice(2, start), {before, right}, kAbsent);
  const Places places{torch::arange(-left, right + 1, log_weight.options()).abs(), {}};
  const auto p = shares(l_near.unfold(2, taps, 1), window(options, places, sizes));  // [B, G, M, taps]
  auto y = p.slice(3, 0, 1) * x_near.slice(2, 0, targets);
  for (int64_t k = 1; k < taps; ++k) y = y + p.slice(3, k, k + 1) * x_near.slice(2, k, k + targets);
  return y.to(x.scalar_type());
}

// The operator, which takes rows without a group dimension as they lie.
Tensor pool_gaussian(const Tensor& x, const Tensor& log_weight, const Tensor& sizes, bool causal) {
  if (x.size(1) > 1) return pool1d(x, log_weight, sizes, causal);
  return pool1d(x.squeeze(1), log_weight.squeeze(1), sizes.squeeze(1), causal).unsqueeze(1);
}

// The weighted mean of all tokens, or of those up to each target.
Tensor pool_everything(const Tensor& x, const Tensor& log_weight, bool causal, int64_t targets) {
  const auto sizes = torch::full({x.size(0), x.size(1), causal ? targets : 1}, kUnboundedSize, log_weight.options());
  return pool_gaussian(x, log_weight, sizes, causal).expand({-1, -1, targets, -1});
}

Tensor with_padding(const Tensor& log_weight, const Tensor& padded) {
  return padded.defined() ? log_weight.masked_fill(padded.unsqueeze(1), kAbsent) : log_weight;
}

// l [B, G, S] of the average that is left to take: 0 where the weights are part of the features, or all alike.
Tensor log_weights(const ContextPoolOptions& options, const Tensor& x, int64_t sources, const Prediction& prediction,
                   const Tensor& padded) {
  if (options.weights == "softmax" && prediction.weights.defined()) return with_padding(prediction.weights, padded);
  const auto type = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return with_padding(torch::zeros({x.size(0), options.groups, sources}, x.options().dtype(type)), padded);
}

// theta(x_i)^T phi(x_j): [B, 1, M, S].
Tensor pair_scores(const Prediction& prediction, const Tensor& padded) {
  const auto type = prediction.queries.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const auto scores = torch::matmul(prediction.queries.to(type), prediction.keys.to(type).transpose(1, 2)).unsqueeze(1);
  return padded.defined() ? scores.masked_fill(padded.unsqueeze(1).unsqueeze(1), kAbsent) : scores;
}

// What "unnormalized" averages: w_j x_j.
Tensor weighted(const Tensor& x, const Tensor& weights) { return (x * weights).to(x.scalar_type()); }

Places row_places(const Tensor& like, int64_t tokens, int64_t targets, bool causal) {
  const auto positions = torch::arange(tokens, like.options());
  const auto t = positions.slice(0, tokens - targets).unsqueeze(1) - positions;
  return {t.abs(), causal ? t < 0 : Tensor()};
}

Places map_places(const Tensor& like, const Tensor& targets, int64_t pixels, int64_t width) {
  const auto sources = torch::arange(pixels, targets.options());
  const auto down = (targets.div(width, "floor").unsqueeze(1) - sources.div(width, "floor")).to(like.scalar_type());
  const auto across = (targets.remainder(width).unsqueeze(1) - sources.remainder(width)).to(like.scalar_type());
  return {(down.square() + across.square()).sqrt(), {}};
}

// Every source for every target: x [B, G, S, D], log_weight [B, G, S]; at: the targets among the sources, [M].
Tensor pool_dense(const ContextPoolOptions& options, const Tensor& x, const Tensor& log_weight, const Places& places,
                  const Prediction& prediction, const Tensor& at, const Tensor& padded) {
  auto scores = pairwise_weights(options) ? pair_scores(prediction, padded) : log_weight.unsqueeze(2);
  if (options.locality == "gaussian") {
    scores = scores - (places.distance / prediction.sizes.clamp_min(kSmallestSize).unsqueeze(-1)).square() / 2;
  }
  auto g = window(options, places, prediction.sizes);
  if (options.locality == "random_sparse") g = g * random_sources(options, at, x.size(2), padded);
  return average(x, scores, g);
}

}  // namespace

Tensor at_targets(const ContextPool2dOptions& options, const Tensor& map) {
  return map.slice(-2, 0, std::nullopt, options.stride[0]).slice(-1, 0, std::nullopt, options.stride[1]);
}

Tensor predicted_sizes(const ContextPoolOptions& options, const Tensor& channels, const Tensor& padded,
                       const Tensor& length) {
  const auto sizes = channels.slice(1, channels.size(1) - options.groups);
  const auto limit = options.ratio * length;
  if (bounded_sizes(options)) {
    const auto start = options.initial_sigma, least = smallest_size(options);
    const auto largest = limit.clamp_min(smallest_limit(options));
    return (sizes + torch::log((start - least) / (largest - start))).sigmoid() * (largest - least) + least;
  }
  if (options.size_norm == "sigmoid") return sizes.sigmoid() * limit;
  if (options.size_norm == "channels") return (sizes - channels.slice(1, 0, options.groups)).sigmoid() * limit;
  return shares(with_padding(sizes, padded)) * limit;
}

Tensor pool_row(const ContextPoolOptions& options, const Tensor& x, const Prediction& prediction, const Tensor& padded,
                int64_t targets) {
  const auto tokens = x.size(1);
  const auto split = x.unflatten(2, {options.groups, -1}).transpose(1, 2);  // [B, G, N, D / G]
  const auto features = options.weights == "unnormalized" ? weighted(split, prediction.weights.unsqueeze(-1)) : split;
  const auto l = log_weights(options, x, tokens, prediction, padded);
  Tensor y;
  // Adaptive windows in proportion to the row are no smaller, up to a factor, than the row itself.
  const bool bounded =
      options.locality == "fixed_window" || (options.locality == "adaptive_window" && options.reference_length > 0);
  if (options.locality == "gaussian" && !pairwise_weights(options)) {
    y = pool_gaussian(features, l, prediction.sizes, options.causal);
  } else if (options.locality == "none" && !pairwise_weights(options)) {
    y = pool_everything(features, l, options.causal, targets);
  } else if (bounded && !pairwise_weights(options)) {
    y = pool_windows(options, features, l, prediction.sizes, targets);
  } else {
    const auto at = torch::arange(tokens - targets, tokens, x.options().dtype(torch::kLong));
    const auto places = row_places(l, tokens, targets, options.causal);
    y = pool_dense(options, features, l, places, prediction, at, padded);
  }
  y = y.transpose(1, 2).flatten(2);
  return padded.defined() ? y.masked_fill(padded.slice(1, tokens - targets).unsqueeze(2), 0) : y;
}

Tensor pool_map(const ContextPool2dOptions& options, const Tensor& x, const Prediction& prediction,
                const Tensor& padded) {
  const auto batch = x.size(0), groups = options.groups, height = x.size(2), width = x.size(3), pixels = height * width;
  const auto split = groups > 1 ? x.reshape({batch * groups, -1, height, width}) : x;
  const auto maps =
      options.weights == "unnormalized" ? weighted(split, prediction.weights.reshape({-1, 1, height, width})) : split;
  const auto flat_padded = padded.defined() ? padded.flatten(1) : padded;
  const auto l = log_weights(options, x, pixels, prediction, flat_padded);
  const auto at = at_targets(options, torch::arange(pixels, x.options().dtype(torch::kLong)).view({1, height, width}));
  Tensor y;
  if (options.locality == "gaussian" && !pairwise_weights(options)) {
    y = pool2d(maps, l.reshape({-1, height, width}), prediction.sizes.reshape({-1, at.size(1), at.size(2)}),
               options.stride);
  } else {
    const auto features = maps.flatten(2).transpose(1, 2).unflatten(0, {batch, groups});  // [B, G, H W, C / G]
    const auto targets = at.flatten();
    y = options.locality == "none" && !pairwise_weights(options)
            ? pool_everything(features, l, /*causal=*/false, targets.size(0))
            : pool_dense(options, features, l, map_places(l, targets, pixels, width), prediction, targets, flat_padded);
    y = y.transpose(2, 3);
  }
  y = y.reshape({batch, x.size(1), at.size(1), at.size(2)});
  return padded.defined() ? y.masked_fill(at_targets(options, padded).unsqueeze(1), 0) : y;
}

Windows windows_of(const ContextPoolOptions& options, const Tensor& x, const Prediction& prediction,
                   const Tensor& padded, torch::IntArrayRef sources, torch::IntArrayRef targets) {
  Windows windows;
  if (options.weights == "unnormalized") {
    windows.log_weight = padded.defined() ? prediction.weights.masked_fill(padded.unsqueeze(1), 0) : prediction.weights;
  } else if (!pairwise_weights(options)) {
    windows.log_weight = log_weights(options, x, c10::multiply_integers(sources), prediction, padded);
  }
  windows.sigma = prediction.sizes;
  const auto shaped = [&](const Tensor& values, torch::IntArrayRef shape) {
    if (!values.defined()) return values;
    const auto map = values.unflatten(2, shape);
    return options.groups == 1 ? map.squeeze(1) : map;
  };
  return {shaped(windows.log_weight, sources), shaped(windows.sigma, targets)};
}

void explain_dtype(const char* who, const torch::nn::Module& module, const Tensor& x) {
  for (const auto& parameter : module.parameters()) {
    TORCH_CHECK_VALUE(parameter.scalar_type() == x.scalar_type(), who, ": x is ", x.scalar_type(),
                      ", but the parameters are ", parameter.scalar_type(),
                      "; convert one of them (module->to or x.to), or use autocast");
  }
}

}  // namespace contextpool::nn
