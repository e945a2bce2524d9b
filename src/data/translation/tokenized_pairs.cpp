#include "contextpool/data/translation/tokenized_pairs.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "contextpool/io/crc32c.h"

namespace contextpool::data {
namespace {

at::Tensor padded(std::int64_t rows, std::int64_t width) { return at::full({rows, width}, kPad, at::kLong); }

// A row of a batch: `first` if it is a symbol, then the sentence, then `last` if it is one.
template <typename Symbols>
void fill_row(at::Tensor& batch, std::int64_t row, std::int64_t first, const Symbols& symbols, std::int64_t last) {
  auto* to = batch.mutable_data_ptr<std::int64_t>() + row * batch.size(1);
  if (first != kPad) *to++ = first;
  to = std::copy(symbols.begin(), symbols.end(), to);
  if (last != kPad) *to = last;
}

}  // namespace

TokenizedPairs::TokenizedPairs(const ParallelText& text, const Vocabulary& source, const Vocabulary& target,
                               std::int64_t max_tokens)
    : report_(text.report()) {
  TORCH_CHECK_VALUE(max_tokens >= 2, "contextpool: sentences of at most ", max_tokens, " tokens; expected at least 2");
  for (std::int64_t i = 0; i < text.size(); ++i) {
    const auto ours = source.encode(text.pair(i).source), theirs = target.encode(text.pair(i).target);
    const auto longest = static_cast<std::int64_t>(std::max(ours.size(), theirs.size())) + 1;
    if (ours.empty() || theirs.empty()) {
      report_.empty.add(text.line(i));
    } else if (longest > max_tokens) {
      report_.too_long.add(text.line(i));
    } else {
      symbols_.insert(symbols_.end(), ours.begin(), ours.end());
      ends_.push_back(symbols_.size());
      symbols_.insert(symbols_.end(), theirs.begin(), theirs.end());
      ends_.push_back(symbols_.size());
      lengths_.push_back({static_cast<std::int32_t>(ours.size()) + 1, static_cast<std::int32_t>(theirs.size()) + 1});
      pairs_.push_back(i);
    }
  }
  report_.kept = size();
  TORCH_CHECK_VALUE(size() > 0, text.name(), ": no pair of sentences can be used: ", report_.text());
  checksum_ = io::crc32c(std::as_bytes(std::span(symbols_)), io::crc32c(std::as_bytes(std::span(ends_))));
}

std::span<const std::int32_t> TokenizedPairs::side(std::int64_t k) const {
  TORCH_CHECK_INDEX(k >= 0 && k / 2 < size(), "contextpool: pair ", k / 2, " of ", size());
  const auto at = static_cast<std::size_t>(k);
  const auto begin = at == 0 ? 0 : ends_[at - 1];
  return std::span(symbols_).subspan(begin, ends_[at] - begin);
}

TranslationBatch TokenizedPairs::batch(std::span<const std::int64_t> pairs) const {
  TORCH_CHECK_VALUE(!pairs.empty(), "contextpool: a batch without pairs");
  std::int64_t longest_source = 0, longest_target = 0;
  for (const auto i : pairs) {
    longest_source = std::max(longest_source, static_cast<std::int64_t>(source(i).size()) + 1);
    longest_target = std::max(longest_target, static_cast<std::int64_t>(target(i).size()) + 1);
  }
  const auto rows = static_cast<std::int64_t>(pairs.size());
  TranslationBatch batch = {padded(rows, longest_source), padded(rows, longest_target), padded(rows, longest_target)};
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto i = pairs[static_cast<std::size_t>(row)];
    fill_row(batch.source, row, kPad, source(i), kEnd);
    fill_row(batch.target_input, row, kBegin, target(i), kPad);
    fill_row(batch.target, row, kPad, target(i), kEnd);
  }
  return batch;
}

at::Tensor source_batch(std::span<const std::vector<std::int64_t>> sentences) {
  TORCH_CHECK_VALUE(!sentences.empty(), "contextpool: a batch without sentences");
  std::size_t longest = 0;
  for (const auto& sentence : sentences) longest = std::max(longest, sentence.size() + 1);
  auto batch = padded(static_cast<std::int64_t>(sentences.size()), static_cast<std::int64_t>(longest));
  for (std::size_t row = 0; row < sentences.size(); ++row) {
    fill_row(batch, static_cast<std::int64_t>(row), kPad, sentences[row], kEnd);
  }
  return batch;
}

}  // namespace contextpool::data
