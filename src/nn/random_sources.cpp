#include "nn/random_sources.h"

namespace contextpool::nn {
namespace {

constexpr int64_t kSources = 8;
constexpr int64_t kLow = 0xffffffff;
constexpr int64_t kFactor = 0x45d9f3b;
constexpr int kHalf = 16, kBits = 32;

// A one-to-one mixing of 32 bits; products stay below 2^63.
torch::Tensor mix(torch::Tensor v) {
  v = v & kLow;
  for (int round = 0; round < 2; ++round) v = ((v ^ torch::bitwise_right_shift(v, kHalf)) * kFactor) & kLow;
  return v ^ torch::bitwise_right_shift(v, kHalf);
}

}  // namespace

torch::Tensor random_sources(const ContextPoolOptions& options, const torch::Tensor& targets, int64_t tokens,
                             const torch::Tensor& padded) {
  const auto places = torch::arange(tokens, targets.options());
  // The real tokens of each row, counted: a row looks the same however it is padded.
  auto order = places.unsqueeze(0), rank = order, count = torch::full({1, 1, 1}, tokens, targets.options());
  if (padded.defined()) {
    order = padded.to(torch::kByte).argsort(/*stable=*/true, /*dim=*/1);
    rank = (padded.logical_not().cumsum(1) - 1).clamp_min(0);
    count = padded.logical_not().sum(1).view({-1, 1, 1});
  }
  rank = rank.index_select(1, targets).unsqueeze(2);
  if (options.causal) count = rank + 1;
  const auto k = torch::arange(kSources, targets.options());
  const auto layer = mix(mix(torch::full({}, options.seed, targets.options())) + options.layer);
  const auto chosen = torch::bitwise_right_shift(mix(mix(layer + rank) + k) * count, kBits).flatten(1);
  const auto sources = order.gather(1, chosen).view({-1, targets.size(0), kSources});
  const auto none = torch::zeros({sources.size(0), targets.size(0), tokens}, targets.options().dtype(torch::kBool));
  return none.scatter(2, sources, true).logical_or(targets.unsqueeze(1) == places).unsqueeze(1);
}

}  // namespace contextpool::nn
