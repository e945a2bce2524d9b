// Pairs of sentences, each the translation of the other, from two files of as many lines or from one of two columns
// separated by a tab. Files are read as lines.h says. Pairs that training cannot use are dropped, counted and reported
// with the numbers of their first lines:
//   empty    a side has nothing but spaces
//   invalid  a side is not UTF-8
//   long     a side has more than max_characters characters
// Unequal numbers of lines, a missing column and a text without a usable pair are errors (io::Error). No torch needed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextpool/data/translation/lines.h"

namespace contextpool::data {

// How many lines were dropped for one reason, and the first of them, counted from 1.
struct Dropped {
  std::int64_t count = 0;
  std::vector<std::int64_t> lines;

  void add(std::int64_t line);
};

struct ParallelReport {
  std::int64_t lines = 0, kept = 0;
  Dropped empty, invalid, too_long;

  // "29000 lines, 28990 kept; dropped: 3 empty (lines 5, 7, 9), 7 too long (lines 12, 40, 41, 52, 70, ...)"
  std::string text() const;
};

struct ParallelOptions {
  std::int64_t max_characters = 5000;  // 0: no limit
};

struct SentencePair {
  std::string_view source, target;
};

class ParallelText {
 public:
  static ParallelText from_files(const std::string& source, const std::string& target,
                                 const ParallelOptions& options = {});
  static ParallelText from_tsv(const std::string& path, const ParallelOptions& options = {});
  // The same of lines that are read already.
  static ParallelText from_lines(const Lines& source, const Lines& target, const ParallelOptions& options = {});
  static ParallelText from_columns(const Lines& tsv, const ParallelOptions& options = {});
  // Pairs made by the program; `name` stands for the file in messages.
  static ParallelText from_pairs(std::vector<std::pair<std::string, std::string>> pairs, const std::string& name,
                                 const ParallelOptions& options = {});

  const std::string& name() const { return name_; }  // "train.en and train.de"
  std::int64_t size() const { return static_cast<std::int64_t>(pairs_.size()); }
  SentencePair pair(std::int64_t i) const;
  std::int64_t line(std::int64_t i) const;  // where pair i was read, counted from 1
  const ParallelReport& report() const { return report_; }
  // CRC-32C of the pairs that were kept: the same however they were packed, another as soon as training would differ.
  std::uint32_t checksum() const { return checksum_; }

 private:
  ParallelText(std::string name, std::shared_ptr<const void> owner)
      : name_(std::move(name)), owner_(std::move(owner)) {}
  void add(std::string_view source, std::string_view target, const ParallelOptions& options);
  void finish();

  std::string name_;
  std::shared_ptr<const void> owner_;  // of the bytes; shared by copies
  std::vector<SentencePair> pairs_;
  std::vector<std::int64_t> lines_;
  ParallelReport report_;
  std::uint32_t checksum_ = 0;
};

}  // namespace contextpool::data
