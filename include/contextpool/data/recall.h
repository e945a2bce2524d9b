// Rows that ask for what was said before, generated: nothing to download, and each row a pure function of (split, seed,
// step, row), as for batches of a text; splits have other random streams. Symbol 0 is the blank. With P pairs and Q
// queries a row has 2 P + 2 Q symbols:
//
//   recall   k_1 v_1 ... k_P v_P  q_1 0 ... q_Q 0      multi-query associative recall (Arora et al. 2023): the keys are
//            different symbols of the lower half of the vocabulary, the values any of the upper half; each q is one of
//            the keys, and its answer the key's value
//   k-hop    c_i c_(i+1) ...          h_1 q_1 ... h_Q q_Q    the P pairs of neighbours in a chain c_0 ... c_P of
//            different symbols, shuffled; each q is a symbol of the chain, h a number of hops from 1 to `hops` (as
//            symbol h), and the answer is what stands h places after q in the chain
//
// The target at q is its answer, everywhere else kNotAsked. Queries are drawn independently of each other. The share of
// right answers is the score; guessing among the symbols of the row gives about 1 / P.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contextpool/data/batch.h"
#include "contextpool/data/text.h"

namespace contextpool::data {

struct RecallOptions {
  std::string kind = "recall";  // of recall_kinds()
  std::int64_t symbols = 64;    // the size of the vocabulary, the blank and the numbers of hops included
  std::int64_t pairs = 16;
  std::int64_t queries = 16;
  std::int64_t hops = 2;  // of k-hop: at most
};

std::vector<std::string> recall_kinds();

// A target that no loss counts: the ignore_index of torch's cross_entropy.
inline constexpr std::int64_t kNotAsked = -100;

// Throws for options that no row fits: too few symbols, or chains shorter than the hops.
void validate(const RecallOptions& options);

// Rows of step `step`: int64 [rows, 2 pairs + 2 queries] each. train, dev or test.
Batch make_recall(const RecallOptions& options, Split split, std::int64_t seed, std::int64_t step, Rows rows);

}  // namespace contextpool::data
