// Which items a step sees, as a pure function of (seed, how many items came before): nothing has to be saved to resume
// at any step, and neither threads nor ranks change it.
//
// Epochs: the k-th item of a run is item permuted(k % size, size, key of (seed, k / size)) of the split, so that every
// epoch shows each item once, in an order of its own. A batch may span the end of an epoch. (Texts are sampled with
// repetition instead: data/batch.h.)
#pragma once

#include <cstdint>
#include <vector>

namespace contextpool::data {

struct EpochItem {
  std::int64_t epoch = 0;
  std::int64_t item = 0;
};

// Items first, first + 1, ..., first + count - 1 of a run over a split of `size` items.
std::vector<EpochItem> epoch_items(std::int64_t seed, std::int64_t size, std::int64_t first, std::int64_t count);

}  // namespace contextpool::data
