// Permutations of 0 ... count - 1 that need not be stored: entry i of the permutation that a key names is computed by
// itself, in a few dozen operations, by a Feistel network of hashed rounds over the next power of four, walked until it
// returns to the range.
#pragma once

#include <cstdint>

namespace contextpool::data {

// Where the permutation of this key sends i; every key's is a bijection of 0 ... count - 1.
std::int64_t permuted(std::int64_t i, std::int64_t count, std::uint64_t key);

}  // namespace contextpool::data
