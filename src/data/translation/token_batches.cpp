#include "contextpool/data/translation/token_batches.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "contextpool/data/permutation.h"
#include "contextpool/data/random.h"

namespace contextpool::data {
namespace {

std::int64_t longer(PairLength length) { return std::max(length.source, length.target); }

auto key(PairLength length) { return std::tuple(longer(length), length.source, length.target); }

// What random numbers are for, so that the two permutations of an epoch are not the same.
constexpr std::uint64_t kOfPairs = 1, kOfBatches = 2;

// Bounds of batches in pairs sorted by length, from the longest down: each takes all that fit. What is left over at the
// short end takes from its neighbour if it has too few.
std::vector<std::int64_t> divide(const std::vector<std::int64_t>& longest, const TokenBatchOptions& options) {
  std::vector<std::int64_t> bounds = {static_cast<std::int64_t>(longest.size())};
  while (bounds.back() > 0) {
    const auto most = options.max_tokens / longest[static_cast<std::size_t>(bounds.back()) - 1];
    bounds.push_back(std::max<std::int64_t>(bounds.back() - most, 0));
  }
  std::reverse(bounds.begin(), bounds.end());
  if (bounds.size() > 2 && bounds[1] < options.min_rows) bounds[1] = options.min_rows;
  return bounds;
}

}  // namespace

TokenBatches::TokenBatches(const std::vector<PairLength>& lengths, const TokenBatchOptions& options)
    : options_(options), order_(lengths.size()) {
  TORCH_CHECK_VALUE(!lengths.empty(), "contextpool: batches of no pairs");
  TORCH_CHECK_VALUE(options.max_tokens >= 1 && options.min_rows >= 1, "contextpool: batches of ", options.max_tokens,
                    " tokens and at least ", options.min_rows, " rows; expected positive numbers");
  std::iota(order_.begin(), order_.end(), 0);
  const auto of = [&](std::int64_t i) { return lengths[static_cast<std::size_t>(i)]; };
  std::stable_sort(order_.begin(), order_.end(), [&](auto a, auto b) { return key(of(a)) < key(of(b)); });
  std::vector<std::int64_t> longest;
  for (std::size_t place = 0; place < order_.size(); ++place) {
    const auto length = of(order_[place]);
    TORCH_CHECK_VALUE(length.source > 0 && length.target > 0, "contextpool: pair ", order_[place], " has no tokens");
    const bool same = place > 0 && key(of(order_[place - 1])) == key(length);
    groups_.push_back(same ? groups_.back() : static_cast<std::int64_t>(place));
    longest.push_back(longer(length));
  }
  const auto rows = options.min_rows == 1 ? 1 : 2 * options.min_rows;  // twice, to have some for the neighbour
  TORCH_CHECK_VALUE(longest.back() <= options.max_tokens / rows, "contextpool: pair ", order_.back(), " has ",
                    longest.back(), " tokens, but batches of ", options.max_tokens, " tokens with at least ",
                    options.min_rows, " rows have room for ", options.max_tokens / rows,
                    "; give larger batches, or drop long pairs");
  TORCH_CHECK_VALUE(static_cast<std::int64_t>(order_.size()) >= options.min_rows, "contextpool: ", order_.size(),
                    " pairs are too few for batches of at least ", options.min_rows, " rows");
  bounds_ = divide(longest, options);

  double tokens = 0, all = 0;
  for (std::size_t b = 0; b + 1 < bounds_.size(); ++b) {
    std::int64_t source = 0, target = 0;
    for (auto place = bounds_[b]; place < bounds_[b + 1]; ++place) {
      const auto length = of(order_[static_cast<std::size_t>(place)]);
      source = std::max<std::int64_t>(source, length.source);
      target = std::max<std::int64_t>(target, length.target);
      tokens += length.source + length.target;
    }
    all += static_cast<double>((bounds_[b + 1] - bounds_[b]) * (source + target));
  }
  padding_ = 1 - tokens / all;
}

double TokenBatches::padding() const { return padding_; }

std::int64_t TokenBatches::pair_at(std::int64_t place, std::uint64_t epoch) const {
  const auto begin = groups_[static_cast<std::size_t>(place)];
  const auto end = std::upper_bound(groups_.begin() + place, groups_.end(), begin) - groups_.begin();
  const auto name =
      random_bits({static_cast<std::uint64_t>(options_.seed), epoch, kOfPairs, static_cast<std::uint64_t>(begin)});
  return order_[static_cast<std::size_t>(begin + permuted(place - begin, end - begin, name))];
}

std::vector<std::int64_t> TokenBatches::batch(std::int64_t step) const {
  TORCH_CHECK_VALUE(step >= 0, "contextpool: the batch of step ", step);
  const auto turn = static_cast<std::uint64_t>(epoch(step));
  const auto name = random_bits({static_cast<std::uint64_t>(options_.seed), turn, kOfBatches});
  const auto b = static_cast<std::size_t>(permuted(step % per_epoch(), per_epoch(), name));
  std::vector<std::int64_t> pairs;
  for (auto place = bounds_[b]; place < bounds_[b + 1]; ++place) pairs.push_back(pair_at(place, turn));
  return pairs;
}

}  // namespace contextpool::data
