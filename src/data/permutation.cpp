#include "contextpool/data/permutation.h"

#include <c10/util/Exception.h>

#include <bit>

#include "contextpool/data/random.h"

namespace contextpool::data {
namespace {

// Small ranges mix slowly: with one bit a half, this many rounds leave no entry's place more likely than another's.
constexpr std::uint64_t kRounds = 10;

}  // namespace

std::int64_t permuted(std::int64_t i, std::int64_t count, std::uint64_t key) {
  TORCH_CHECK_INDEX(i >= 0 && i < count, "contextpool: entry ", i, " of a permutation of ", count);
  if (count == 1) return 0;
  const auto bits = (static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(count - 1))) + 1) / 2;
  const auto mask = (std::uint64_t{1} << bits) - 1;
  auto value = static_cast<std::uint64_t>(i);
  do {
    auto left = value >> bits, right = value & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const auto next = left ^ (random_bits({key, round, right}) & mask);
      left = right;
      right = next;
    }
    value = left << bits | right;
  } while (value >= static_cast<std::uint64_t>(count));  // at most 4 times on average: the domain is below 4 count
  return static_cast<std::int64_t>(value);
}

}  // namespace contextpool::data
