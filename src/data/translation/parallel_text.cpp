#include "contextpool/data/translation/parallel_text.h"

#include <algorithm>
#include <span>

#include "contextpool/data/translation/utf8.h"
#include "contextpool/io/crc32c.h"
#include "data/translation/gzip.h"

namespace contextpool::data {
namespace {

constexpr std::size_t kExamples = 5;

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\v\f") == std::string_view::npos; }

bool is_longer(std::string_view text, std::int64_t limit) {
  return limit > 0 && static_cast<std::int64_t>(text.size()) > limit &&
         static_cast<std::int64_t>(count_code_points(text)) > limit;
}

void describe(std::string& text, const Dropped& dropped, const char* why) {
  if (dropped.count == 0) return;
  text += (text.empty() ? "" : ", ") + std::to_string(dropped.count) + " " + why + " (line" +
          (dropped.count == 1 ? "" : "s");
  for (std::size_t k = 0; k < dropped.lines.size(); ++k) {
    text += (k == 0 ? " " : ", ") + std::to_string(dropped.lines[k]);
  }
  text += dropped.count > static_cast<std::int64_t>(dropped.lines.size()) ? ", ...)" : ")";
}

std::uint32_t checksum_of(std::uint32_t before, std::string_view side) {
  const auto after = io::crc32c(std::as_bytes(std::span(side)), before);
  return io::crc32c(std::as_bytes(std::span("\n", 1)), after);
}

}  // namespace

void Dropped::add(std::int64_t line) {
  ++count;
  if (lines.size() < kExamples) lines.push_back(line);
}

std::string ParallelReport::text() const {
  std::string dropped;
  describe(dropped, empty, "empty");
  describe(dropped, invalid, "not UTF-8");
  describe(dropped, too_long, "too long");
  auto text = std::to_string(lines) + " lines, " + std::to_string(kept) + " kept";
  return dropped.empty() ? text : text + "; dropped: " + dropped;
}

void ParallelText::add(std::string_view source, std::string_view target, const ParallelOptions& options) {
  const auto line = ++report_.lines;
  if (is_blank(source) || is_blank(target)) {
    report_.empty.add(line);
  } else if (!is_valid_utf8(source) || !is_valid_utf8(target)) {
    report_.invalid.add(line);
  } else if (is_longer(source, options.max_characters) || is_longer(target, options.max_characters)) {
    report_.too_long.add(line);
  } else {
    pairs_.push_back({source, target});
    lines_.push_back(line);
    checksum_ = checksum_of(checksum_of(checksum_, source), target);
  }
}

void ParallelText::finish() {
  report_.kept = size();
  require(size() > 0, name_, ": no pair of sentences can be used: ", report_.text());
}

ParallelText ParallelText::from_files(const std::string& source, const std::string& target,
                                      const ParallelOptions& options) {
  return from_lines(Lines(source), Lines(target), options);
}

ParallelText ParallelText::from_lines(const Lines& source, const Lines& target, const ParallelOptions& options) {
  const auto files = std::make_shared<const std::pair<Lines, Lines>>(source, target);
  const auto& [ours, theirs] = *files;
  require(ours.size() == theirs.size(), ours.path(), " has ", ours.size(), " lines, but ", theirs.path(), " has ",
          theirs.size(), "; line n of one must be the translation of line n of the other");
  ParallelText text(ours.path() + " and " + theirs.path(), files);
  for (std::int64_t i = 0; i < ours.size(); ++i) text.add(ours[i], theirs[i], options);
  text.finish();
  return text;
}

ParallelText ParallelText::from_tsv(const std::string& path, const ParallelOptions& options) {
  return from_columns(Lines(path), options);
}

ParallelText ParallelText::from_columns(const Lines& tsv, const ParallelOptions& options) {
  const auto lines = std::make_shared<const Lines>(tsv);
  const auto& path = tsv.path();
  ParallelText text(path, lines);
  for (std::int64_t i = 0; i < lines->size(); ++i) {
    const auto line = (*lines)[i];
    const auto tabs = std::count(line.begin(), line.end(), '\t');
    const bool blank = line.empty();
    require(blank || tabs == 1, path, ": line ", i + 1, " of ", lines->size(), " has ", tabs + 1,
            " columns; expected 2, a sentence and its translation, with one tab between");
    const auto tab = std::min(line.find('\t'), line.size());
    text.add(line.substr(0, tab), line.substr(std::min(tab + 1, line.size())), options);
  }
  text.finish();
  return text;
}

ParallelText ParallelText::from_pairs(std::vector<std::pair<std::string, std::string>> pairs, const std::string& name,
                                      const ParallelOptions& options) {
  const auto owned = std::make_shared<const std::vector<std::pair<std::string, std::string>>>(std::move(pairs));
  ParallelText text(name, owned);
  for (const auto& [source, target] : *owned) text.add(source, target, options);
  text.finish();
  return text;
}

SentencePair ParallelText::pair(std::int64_t i) const {
  require(i >= 0 && i < size(), name_, ": pair ", i, " of ", size());
  return pairs_[static_cast<std::size_t>(i)];
}

std::int64_t ParallelText::line(std::int64_t i) const {
  require(i >= 0 && i < size(), name_, ": pair ", i, " of ", size());
  return lines_[static_cast<std::size_t>(i)];
}

}  // namespace contextpool::data
