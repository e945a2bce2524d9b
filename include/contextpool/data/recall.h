// Rows that ask for what was said before, generated: nothing to download, and each row a pure function of (seed, step,
// row), as for batches of a text. Symbol 0 is the blank; with P pairs and Q queries a row has 2 P + 2 Q symbols:
//
//   recall   k_1 v_1 ... k_P v_P  q_1 0 ... q_Q 0     multi-query associative recall (Arora et al. 2023): the keys are
//            different symbols of the lower half of the vocabulary, the values any of the upper half; each q is another
//            of the keys, and its answer the key's value
//   hops     c_i c_(i+1) ...          q_1 0 ... q_Q 0     the P pairs of neighbours in a chain c_0 ... c_P of different
//            symbols, shuffled; each q is another symbol of the chain, and its answer the one `hops` places after it
//
// The target at a query is its answer, everywhere else kNotAsked. The share of right answers is the score; chance is
// near 0 in both.
#pragma once

#include <cstdint>
#include <string>

#include "contextpool/data/batch.h"

namespace contextpool::data {

struct RecallOptions {
  std::string kind = "recall";    // recall or hops
  std::int64_t vocabulary = 256;  // symbols, the blank included
  std::int64_t pairs = 32;
  std::int64_t queries = 16;
  std::int64_t hops = 2;  // of hops
};

// A target that no loss counts: the ignore_index of torch's cross_entropy.
inline constexpr std::int64_t kNotAsked = -100;

// Throws for options that no row fits: too few symbols, or more queries than can differ.
void validate(const RecallOptions& options);

// Rows of step `step`: int64 [rows, 2 pairs + 2 queries] each.
Batch make_recall(const RecallOptions& options, std::int64_t seed, std::int64_t step, Rows rows);

}  // namespace contextpool::data
