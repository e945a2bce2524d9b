// Batches of pairs of like lengths, as a pure function of (lengths, max_tokens, seed, step). No state: step s of a
// resumed run has the batch that it would have had.
//
// Pairs are sorted by the length of their longer side, then by both; runs of them become batches of at most max_tokens
// padded tokens (rows times the longest side). The lengths of every batch, and so their number, are thus the same in
// every epoch. What an epoch draws anew is which of the pairs of equal lengths stands where, and the order of batches:
// permutations that (seed, epoch) name and that are computed entry by entry. Every pair is in one batch an epoch.
//
// Several ranks divide the rows of a batch (part_of() of data/batch.h), so that their number does not change what a
// step sees; min_rows then keeps every batch large enough to be divided.
#pragma once

#include <cstdint>
#include <vector>

#include "contextpool/data/translation/tokenized_pairs.h"

namespace contextpool::data {

struct TokenBatchOptions {
  std::int64_t max_tokens = 4096;  // of one side, padding included
  std::int64_t seed = 1;
  std::int64_t min_rows = 1;  // in every batch
};

class TokenBatches {
 public:
  // Throws if a pair is longer than max_tokens, or than max_tokens / (2 min_rows) where min_rows is above 1.
  TokenBatches(const std::vector<PairLength>& lengths, const TokenBatchOptions& options);

  std::int64_t per_epoch() const { return static_cast<std::int64_t>(bounds_.size()) - 1; }
  std::int64_t epoch(std::int64_t step) const { return step / per_epoch(); }
  std::vector<std::int64_t> batch(std::int64_t step) const;  // the numbers of its pairs

  // The share of padding among all tokens of an epoch's batches, of both sides.
  double padding() const;

 private:
  std::int64_t pair_at(std::int64_t place, std::uint64_t epoch) const;

  TokenBatchOptions options_;
  std::vector<std::int64_t> order_;   // pairs by length, equal ones by number
  std::vector<std::int64_t> groups_;  // of each place in order_, where its group of equal lengths begins; last: the end
  std::vector<std::int64_t> bounds_;  // of batches in order_
  double padding_ = 0;
};

}  // namespace contextpool::data
