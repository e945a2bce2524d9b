// Parallel text as numbers, in memory: what training reads. Pairs with a side of more than max_tokens pieces (kEnd
// counted), or that normalisation leaves empty, are dropped, counted and reported, as parallel_text.h does.
#pragma once

#include <ATen/core/Tensor.h>

#include "contextpool/data/translation/vocabulary.h"

namespace contextpool::data {

// int64, on the CPU; rows padded at their end with kPad. As in tensor2tensor both sides end with kEnd; the decoder
// reads the target shifted right by one, so that it begins with kBegin and lacks kEnd.
struct TranslationBatch {
  at::Tensor source;        // [B, S]
  at::Tensor target_input;  // [B, T]
  at::Tensor target;        // [B, T]
};

// Tokens of a pair, kEnd counted on both sides.
struct PairLength {
  std::int32_t source, target;
};

class TokenizedPairs {
 public:
  TokenizedPairs(const ParallelText& text, const Vocabulary& source, const Vocabulary& target,
                 std::int64_t max_tokens = 256);

  std::int64_t size() const { return static_cast<std::int64_t>(lengths_.size()); }
  const std::vector<PairLength>& lengths() const { return lengths_; }
  std::int64_t pair(std::int64_t i) const { return pairs_.at(static_cast<std::size_t>(i)); }  // its number in the text
  // Without kEnd. Valid as long as this object is.
  std::span<const std::int32_t> source(std::int64_t i) const { return side(2 * i); }
  std::span<const std::int32_t> target(std::int64_t i) const { return side(2 * i + 1); }
  const ParallelReport& report() const { return report_; }  // counts the text's lines, and line numbers of its file
  std::uint32_t checksum() const { return checksum_; }      // CRC-32C of the numbers

  TranslationBatch batch(std::span<const std::int64_t> pairs) const;

 private:
  std::span<const std::int32_t> side(std::int64_t k) const;

  std::vector<std::int32_t> symbols_;  // source and target of pair after pair
  std::vector<std::size_t> ends_;      // of each side in symbols_
  std::vector<PairLength> lengths_;
  std::vector<std::int64_t> pairs_;
  ParallelReport report_;
  std::uint32_t checksum_ = 0;
};

// A batch of sentences to translate, int64 [B, S], each with kEnd and padded.
at::Tensor source_batch(std::span<const std::vector<std::int64_t>> sentences);

}  // namespace contextpool::data
