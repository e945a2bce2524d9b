#include "contextpool/nn/window_statistics.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace contextpool::nn {
namespace {

using torch::Tensor;

constexpr int64_t kTargets = 256;  // of a row, or a few more: pairs of all tokens of a long one would not fit in memory
constexpr double kSmallest = 1e-6;

double spread(const Tensor& rows) { return rows.std(-1, /*unbiased=*/false).mean().item<double>(); }

// Where the places of a row [n] or map [h, w] are, in its tokens or pixels: [places, dims].
Tensor places(torch::IntArrayRef shape, const std::vector<int64_t>& strides, const Tensor& like) {
  std::vector<Tensor> sides;
  for (std::size_t d = 0; d < shape.size(); ++d) sides.push_back(torch::arange(shape[d], like.options()) * strides[d]);
  std::vector<Tensor> all;
  for (const auto& side : torch::meshgrid(sides, "ij")) all.push_back(side.flatten());
  return torch::stack(all, 1);
}

// 1 / sum_j p_ij^2 of some targets. log_weight [rows, sources], sigma [rows, targets] in float64; at, from: their
// places.
double effective_tokens(const Tensor& log_weight, const Tensor& sigma, const Tensor& at, const Tensor& from,
                        int64_t step, bool causal) {
  const auto some = [step](const Tensor& targets) { return targets.slice(0, 0, std::nullopt, step); };
  const auto apart = some(at).unsqueeze(1) - from;  // [targets, sources, dims]
  const auto distance = apart.square().sum(2).sqrt();
  double sum = 0;
  for (int64_t row = 0; row < sigma.size(0); ++row) {
    auto scores = log_weight[row] - (distance / some(sigma[row]).clamp_min(kSmallest).unsqueeze(1)).square() / 2;
    if (causal) scores = scores.masked_fill(apart.select(2, 0) < 0, -std::numeric_limits<double>::infinity());
    sum += scores.softmax(1).square().sum(1).reciprocal().mean().item<double>();
  }
  return sum / static_cast<double>(sigma.size(0));
}

}  // namespace

bool has_gaussian_windows(const ContextPoolOptions& options) {
  return options.locality == "gaussian" && (options.weights == "softmax" || options.weights == "uniform");
}

int64_t target_step(torch::IntArrayRef targets) {
  auto step = std::max<int64_t>(1, c10::multiply_integers(targets) / kTargets);
  // Over a map, not always the same columns.
  while (targets.size() > 1 && std::gcd(step, targets.back()) > 1) ++step;
  return step;
}

int64_t stride_of(int64_t sources, int64_t targets) { return (sources + targets - 1) / targets; }

std::optional<WindowStatistics> window_statistics(const ContextPoolOptions& options, const Windows& windows,
                                                  int64_t dims) {
  if (!has_gaussian_windows(options) || !windows.log_weight.defined() || !windows.sigma.defined()) return std::nullopt;
  const torch::NoGradGuard no_grad;
  const auto rows = [dims](const Tensor& values) { return values.to(torch::kDouble).flatten(-dims).flatten(0, -2); };
  const auto sigma = rows(windows.sigma), log_weight = rows(windows.log_weight);
  const auto targets = windows.sigma.sizes().slice(windows.sigma.dim() - dims);
  const auto sources = windows.log_weight.sizes().slice(windows.log_weight.dim() - dims);
  std::vector<int64_t> strides;
  for (int64_t d = 0; d < dims; ++d) strides.push_back(stride_of(sources[d], targets[d]));
  const auto at = places(targets, strides, sigma);
  const auto from = places(sources, std::vector<int64_t>(dims, 1), sigma);
  return WindowStatistics{
      .sigma = sigma.mean().item<double>(),
      .sigma_spread = spread(sigma),
      .log_weight_spread = spread(log_weight),
      .tokens = effective_tokens(log_weight, sigma, at, from, target_step(targets), options.causal)};
}

}  // namespace contextpool::nn
