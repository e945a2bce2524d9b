#include "contextpool/nn/window_statistics.h"

#include <algorithm>
#include <limits>

namespace contextpool::nn {
namespace {

using torch::Tensor;

constexpr int64_t kTargets = 256;  // of a row: pairs of all tokens of a long one would not fit into memory
constexpr double kSmallest = 1e-6;

double spread(const Tensor& rows) { return rows.std(-1, /*unbiased=*/false).mean().item<double>(); }

// 1 / sum_j p_ij^2 of some targets, evenly spread over the row. log_weight, sigma [rows, N] in float64.
double effective_tokens(const Tensor& log_weight, const Tensor& sigma, bool causal) {
  const auto tokens = sigma.size(1), step = std::max<int64_t>(1, tokens / kTargets);
  const auto at = torch::arange(0, tokens, sigma.options());
  const auto distance = at.slice(0, 0, std::nullopt, step).unsqueeze(1) - at;  // [targets, N]
  double sum = 0;
  for (int64_t row = 0; row < sigma.size(0); ++row) {
    const auto sizes = sigma[row].slice(0, 0, std::nullopt, step).clamp_min(kSmallest).unsqueeze(1);
    auto scores = log_weight[row] - (distance / sizes).square() / 2;
    if (causal) scores = scores.masked_fill(distance < 0, -std::numeric_limits<double>::infinity());
    sum += scores.softmax(1).square().sum(1).reciprocal().mean().item<double>();
  }
  return sum / static_cast<double>(sigma.size(0));
}

}  // namespace

std::optional<WindowStatistics> window_statistics(const ContextPoolOptions& options, const Windows& windows) {
  const bool weighted = options.weights == "softmax" || options.weights == "uniform";
  if (options.locality != "gaussian" || !weighted || !windows.log_weight.defined() || !windows.sigma.defined()) {
    return std::nullopt;
  }
  const torch::NoGradGuard no_grad;
  const auto rows = [](const Tensor& values) { return values.to(torch::kDouble).flatten(0, -2); };  // [rows, N]
  const auto sigma = rows(windows.sigma), log_weight = rows(windows.log_weight);
  return WindowStatistics{.sigma = sigma.mean().item<double>(),
                          .sigma_spread = spread(sigma),
                          .log_weight_spread = spread(log_weight),
                          .tokens = effective_tokens(log_weight, sigma, options.causal)};
}

}  // namespace contextpool::nn
