#include "contextpool/data/sampler.h"

#include <c10/util/Exception.h>

#include "contextpool/data/random.h"

namespace contextpool::data {
namespace {

constexpr int kRounds = 6;

// One permutation of 0 .. 4^bits - 1: the halves of `bits` bits take turns to change each other.
std::uint64_t feistel(std::uint64_t value, int bits, std::uint64_t seed, std::uint64_t epoch) {
  const auto mask = (std::uint64_t{1} << bits) - 1;
  auto left = value >> bits, right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const auto changed = left ^ (random_bits({seed, epoch, round, right}) & mask);
    left = right;
    right = changed;
  }
  return (left << bits) | right;
}

}  // namespace

std::int64_t permuted(std::int64_t seed, std::int64_t epoch, std::int64_t size, std::int64_t position) {
  TORCH_CHECK_VALUE(position >= 0 && position < size, "contextpool: item ", position, " of ", size);
  int bits = 1;
  while ((std::int64_t{1} << (2 * bits)) < size) ++bits;
  auto value = static_cast<std::uint64_t>(position);
  do {
    value = feistel(value, bits, static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(epoch));
  } while (value >= static_cast<std::uint64_t>(size));
  return static_cast<std::int64_t>(value);
}

std::vector<EpochItem> epoch_items(std::int64_t seed, std::int64_t size, std::int64_t first, std::int64_t count) {
  std::vector<EpochItem> items;
  items.reserve(static_cast<std::size_t>(count));
  for (auto k = first; k < first + count; ++k) {
    items.push_back({k / size, permuted(seed, k / size, size, k % size)});
  }
  return items;
}

}  // namespace contextpool::data
