#include "eval/unicode.h"

#include <algorithm>
#include <iterator>

#include "eval/unicode_tables.h"

namespace contextpool::eval::unicode {
namespace {

constexpr char32_t kCapitalSigma = 0x3A3, kSigma = 0x3C3, kFinalSigma = 0x3C2;
constexpr char32_t kDottedCapitalI = 0x130, kDotAbove = 0x307;

// The entry of a sorted table that c may be in: the last one that begins at or before it.
template <typename Entry, std::size_t size>
const Entry* find(const Entry (&table)[size], char32_t c) {
  const auto after =
      std::upper_bound(std::begin(table), std::end(table), c, [](char32_t x, const Entry& e) { return x < e.first; });
  if (after == std::begin(table)) return nullptr;
  const auto* entry = std::prev(after);
  return c <= entry->last ? entry : nullptr;
}

char32_t lower(char32_t c) {
  const auto* run = find(kLower, c);
  if (run == nullptr || (c - run->first) % run->step != 0) return c;
  return static_cast<char32_t>(static_cast<std::int64_t>(c) + run->difference);
}

bool is_cased(char32_t c) { return find(kCased, c) != nullptr; }
bool is_ignorable(char32_t c) { return find(kCaseIgnorable, c) != nullptr; }

// Unicode's Final_Sigma: after a cased letter and not before one, whatever ignorable characters are between.
bool is_final(std::u32string_view text, std::size_t at) {
  auto before = at;
  while (before > 0 && is_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  auto after = at + 1;
  while (after < text.size() && is_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

}  // namespace

bool is_punctuation(char32_t c) { return find(kPunctuation, c) != nullptr; }
bool is_symbol(char32_t c) { return find(kSymbol, c) != nullptr; }
bool is_number(char32_t c) { return find(kNumber, c) != nullptr; }
bool is_space(char32_t c) { return find(kSpace, c) != nullptr; }

std::u32string lower(std::u32string_view text) {
  std::u32string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = text[i];
    if (c == kCapitalSigma) {
      result += is_final(text, i) ? kFinalSigma : kSigma;
    } else if (c == kDottedCapitalI) {
      result += U'i';
      result += kDotAbove;
    } else {
      result += lower(c);
    }
  }
  return result;
}

std::u32string_view strip_right(std::u32string_view text) {
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::u32string_view> split(std::u32string_view text) {
  std::vector<std::u32string_view> words;
  for (std::size_t i = 0; i < text.size();) {
    if (is_space(text[i])) {
      ++i;
      continue;
    }
    const auto begin = i;
    while (i < text.size() && !is_space(text[i])) ++i;
    words.push_back(text.substr(begin, i - begin));
  }
  return words;
}

}  // namespace contextpool::eval::unicode
