#include "contextpool/eval/bleu.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <unordered_map>

#include "base/words.h"
#include "contextpool/data/translation/utf8.h"
#include "eval/ngrams.h"
#include "eval/tokenize.h"
#include "eval/unicode.h"

namespace contextpool::eval {
namespace {

constexpr std::int64_t kMostOrders = 100;     // far above any use; bounds memory
constexpr double kLogOfZero = -9999999999.0;  // sacreBLEU's
constexpr double kFloor = 0.1, kAdd = 1;      // the smoothing's defaults

using Words = std::unordered_map<std::u32string, std::int32_t>;

std::vector<std::int32_t> numbers_of(const std::vector<std::u32string>& tokens, Words& words) {
  std::vector<std::int32_t> numbers;
  numbers.reserve(tokens.size());
  for (const auto& token : tokens) {
    numbers.push_back(words.try_emplace(token, static_cast<std::int32_t>(words.size())).first->second);
  }
  return numbers;
}

// The reference length nearest to the hypothesis's; of two as near, the shorter.
std::int64_t closest(std::int64_t length, const std::vector<std::int64_t>& lengths) {
  auto best = lengths.front();
  for (const auto other : lengths) {
    const auto by = std::abs(other - length) - std::abs(best - length);
    if (by < 0 || (by == 0 && other < best)) best = other;
  }
  return best;
}

double penalty(std::int64_t hypothesis, std::int64_t reference) {
  if (hypothesis >= reference) return 1;
  return hypothesis > 0 ? std::exp(1 - static_cast<double>(reference) / static_cast<double>(hypothesis)) : 0;
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

}  // namespace

std::string BleuScore::details() const {
  std::string text;
  for (const auto p : precisions) text += (text.empty() ? "" : "/") + format("%.1f", p);
  const auto ratio =
      reference_length > 0 ? static_cast<double>(hypothesis_length) / static_cast<double>(reference_length) : 0;
  return text + " (BP = " + format("%.3f", brevity_penalty) + " ratio = " + format("%.3f", ratio) +
         " hyp_len = " + std::to_string(hypothesis_length) + " ref_len = " + std::to_string(reference_length) + ")";
}

Bleu::Bleu(BleuOptions options)
    : options_(std::move(options)),
      smoothing_value_(options_.smoothing_value.value_or(options_.smoothing == "floor" ? kFloor : kAdd)) {
  check_word("contextpool: BLEU", "tokenizer", options_.tokenizer, tokenizers());
  check_word("contextpool: BLEU", "smoothing", options_.smoothing, {"exp", "floor", "add-k", "none"});
  TORCH_CHECK_VALUE(options_.max_order >= 1 && options_.max_order <= kMostOrders,
                    "contextpool: BLEU with n-grams up to ", options_.max_order, "; expected 1 to ", kMostOrders);
  TORCH_CHECK_VALUE(std::isfinite(smoothing_value_) && smoothing_value_ >= 0, "contextpool: BLEU with smoothing value ",
                    smoothing_value_, "; expected 0 or more");
}

std::vector<std::u32string> Bleu::tokens(const std::string& text) const {
  auto codes = data::decode_utf8(text);
  if (options_.lowercase) codes = unicode::lower(codes);
  const auto line = tokenize(options_.tokenizer, unicode::strip_right(codes));
  std::vector<std::u32string> all;
  for (const auto& token : unicode::split(line)) all.emplace_back(token);
  return all;
}

Counts Bleu::counts(const std::string& hypothesis, const Sentences& references) const {
  TORCH_CHECK_VALUE(!references.empty(), "contextpool: BLEU needs at least one reference");
  Words words;
  NgramTable table;
  const auto ours = numbers_of(tokens(hypothesis), words);
  const auto ngrams = table.count(ours, options_.max_order);
  std::vector<NgramTable::Counter> best(ngrams.size());
  std::vector<std::int64_t> lengths;
  for (const auto& reference : references) {
    const auto theirs = numbers_of(tokens(reference), words);
    lengths.push_back(static_cast<std::int64_t>(theirs.size()));
    const auto counters = table.count(theirs, options_.max_order);
    for (std::size_t n = 0; n < best.size(); ++n) best[n] = larger(best[n], counters[n]);
  }
  const auto length = static_cast<std::int64_t>(ours.size());
  Counts counts = {length, closest(length, lengths)};
  for (std::size_t n = 0; n < best.size(); ++n) counts.push_back(matches(ngrams[n], best[n]));
  for (const auto& counter : ngrams) counts.push_back(total(counter));
  return counts;
}

BleuScore Bleu::score(const Counts& counts) const {
  const auto orders = static_cast<std::size_t>(options_.max_order);
  TORCH_CHECK_VALUE(counts.size() == 2 + 2 * orders, "contextpool: BLEU from ", counts.size(), " counts; expected ",
                    2 + 2 * orders);
  BleuScore result;
  result.hypothesis_length = counts[0];
  result.reference_length = counts[1];
  result.brevity_penalty = penalty(counts[0], counts[1]);
  result.precisions.assign(orders, 0.0);
  const auto matched = counts.begin() + 2;
  if (std::all_of(matched, matched + options_.max_order, [](std::int64_t m) { return m == 0; })) return result;

  double half = 1;  // of exp: 2^k
  auto used = orders;
  for (std::size_t n = 0; n < orders; ++n) {
    const auto added = options_.smoothing == "add-k" && n > 0 ? smoothing_value_ : 0.0;
    const auto correct = static_cast<double>(counts[2 + n]) + added;
    const auto all = static_cast<double>(counts[2 + orders + n]) + added;
    if (all == 0) break;
    if (options_.effective_order) used = n + 1;
    if (correct > 0) {
      result.precisions[n] = 100. * correct / all;
    } else if (options_.smoothing == "exp") {
      half *= 2;
      result.precisions[n] = 100. / (half * all);
    } else if (options_.smoothing == "floor") {
      result.precisions[n] = 100. * smoothing_value_ / all;
    }
  }
  double logs = 0;
  for (std::size_t n = 0; n < used; ++n) {
    logs += result.precisions[n] == 0 ? kLogOfZero : std::log(result.precisions[n]);
  }
  result.score = result.brevity_penalty * std::exp(logs / static_cast<double>(used));
  return result;
}

BleuScore Bleu::corpus(const Sentences& hypotheses, const std::vector<Sentences>& references) const {
  return score(sum_of(all_counts(hypotheses, references)));
}

BleuScore Bleu::sentence(const std::string& hypothesis, const Sentences& references) const {
  return score(counts(hypothesis, references));
}

std::string Bleu::own_signature() const {
  auto smoothing = options_.smoothing;
  if (smoothing == "floor" || smoothing == "add-k") smoothing += "[" + format("%.2f", smoothing_value_) + "]";
  return std::string("case:") + (options_.lowercase ? "lc" : "mixed") +
         "|eff:" + (options_.effective_order ? "yes" : "no") + "|tok:" + options_.tokenizer + "|smooth:" + smoothing;
}

}  // namespace contextpool::eval
