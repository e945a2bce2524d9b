#include "contextpool/data/sampler.h"

#include "contextpool/data/permutation.h"
#include "contextpool/data/random.h"

namespace contextpool::data {

std::vector<EpochItem> epoch_items(std::int64_t seed, std::int64_t size, std::int64_t first, std::int64_t count) {
  std::vector<EpochItem> items;
  items.reserve(static_cast<std::size_t>(count));
  for (auto k = first; k < first + count; ++k) {
    const auto epoch = k / size;
    const auto key = random_bits({static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(epoch)});
    items.push_back({epoch, permuted(k % size, size, key)});
  }
  return items;
}

}  // namespace contextpool::data
