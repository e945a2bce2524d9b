#include "contextpool/eval/chrf.h"

#include <c10/util/Exception.h>

#include <unordered_map>

#include "contextpool/data/translation/utf8.h"
#include "eval/ngrams.h"
#include "eval/unicode.h"

namespace contextpool::eval {
namespace {

constexpr std::int64_t kMostOrders = 100;  // far above any use; bounds memory
constexpr double kEpsilon = 1e-16;

bool is_ascii_punctuation(char32_t c) {
  return (c >= U'!' && c <= U'/') || (c >= U':' && c <= U'@') || (c >= U'[' && c <= U'`') || (c >= U'{' && c <= U'~');
}

// Words with one punctuation mark set apart: the last character's, or else the first's.
std::vector<std::u32string_view> words_of(std::u32string_view text) {
  std::vector<std::u32string_view> words;
  for (const auto word : unicode::split(text)) {
    const auto inner = word.size() - 1;
    if (inner > 0 && is_ascii_punctuation(word.back())) {
      words.push_back(word.substr(0, inner));
      words.push_back(word.substr(inner));
    } else if (inner > 0 && is_ascii_punctuation(word.front())) {
      words.push_back(word.substr(0, 1));
      words.push_back(word.substr(1));
    } else {
      words.push_back(word);
    }
  }
  return words;
}

// The counters of one sentence after another, with n-grams numbered alike.
class Counter {
 public:
  explicit Counter(const ChrfOptions& options) : options_(options) {}

  std::vector<NgramTable::Counter> count(const std::string& sentence) {
    auto text = data::decode_utf8(sentence);
    if (options_.lowercase) text = unicode::lower(text);
    std::vector<std::int32_t> items;
    for (const auto c : text) {
      if (options_.whitespace || !unicode::is_space(c)) items.push_back(static_cast<std::int32_t>(c));
    }
    auto all = characters_.count(items, options_.char_order);
    if (options_.word_order == 0) return all;
    items.clear();
    for (const auto word : words_of(text)) {
      const auto next = static_cast<std::int32_t>(numbers_.size());
      items.push_back(numbers_.try_emplace(std::u32string(word), next).first->second);
    }
    for (auto& counter : words_.count(items, options_.word_order)) all.push_back(std::move(counter));
    return all;
  }

 private:
  const ChrfOptions& options_;
  NgramTable characters_, words_;
  std::unordered_map<std::u32string, std::int32_t> numbers_;
};

}  // namespace

Chrf::Chrf(ChrfOptions options) : options_(options) {
  TORCH_CHECK_VALUE(options_.char_order >= 0 && options_.char_order <= kMostOrders && options_.word_order >= 0 &&
                        options_.word_order <= kMostOrders && options_.char_order + options_.word_order > 0,
                    "contextpool: chrF with n-grams of up to ", options_.char_order, " characters and ",
                    options_.word_order, " words; expected 0 to ", kMostOrders, " each, and not both 0");
  TORCH_CHECK_VALUE(options_.beta > 0 && options_.beta <= kMostOrders, "contextpool: chrF with beta ", options_.beta,
                    "; expected 1 to ", kMostOrders);
}

std::string Chrf::name() const {
  return "chrF" + std::to_string(options_.beta) + std::string(static_cast<std::size_t>(options_.word_order), '+');
}

Counts Chrf::counts(const std::string& hypothesis, const Sentences& references) const {
  TORCH_CHECK_VALUE(!references.empty(), "contextpool: chrF needs at least one reference");
  Counter counter(options_);
  const auto ours = counter.count(hypothesis);
  Counts best;
  double best_score = -1;
  for (const auto& reference : references) {
    const auto theirs = counter.count(reference);
    Counts counts;
    for (std::size_t n = 0; n < ours.size(); ++n) {
      // An order that the reference lacks is not held against the hypothesis.
      counts.push_back(theirs[n].empty() ? 0 : total(ours[n]));
      counts.push_back(total(theirs[n]));
      counts.push_back(matches(ours[n], theirs[n]));
    }
    const auto score = score_of(counts);
    if (score > best_score) {
      best_score = score;
      best = std::move(counts);
    }
  }
  return best;
}

double Chrf::score_of(const Counts& counts) const {
  const auto orders = static_cast<std::size_t>(options_.char_order + options_.word_order);
  TORCH_CHECK_VALUE(counts.size() == 3 * orders, "contextpool: chrF from ", counts.size(), " counts; expected ",
                    3 * orders);
  const auto factor = static_cast<double>(options_.beta * options_.beta);
  double precision = 0, recall = 0, scores = 0;
  std::int64_t used = 0;
  for (std::size_t n = 0; n < orders; ++n) {
    const auto ours = static_cast<double>(counts[3 * n]), theirs = static_cast<double>(counts[3 * n + 1]);
    const auto matched = static_cast<double>(counts[3 * n + 2]);
    const auto p = ours > 0 ? matched / ours : kEpsilon, r = theirs > 0 ? matched / theirs : kEpsilon;
    const auto below = factor * p + r;
    scores += below > 0 ? (1 + factor) * p * r / below : kEpsilon;
    if (ours > 0 && theirs > 0) {
      precision += p;
      recall += r;
      ++used;
    }
  }
  if (options_.eps_smoothing) return 100 * scores / static_cast<double>(orders);
  if (used == 0 || precision + recall == 0) return 0;
  precision /= static_cast<double>(used);
  recall /= static_cast<double>(used);
  return 100 * (1 + factor) * precision * recall / (factor * precision + recall);
}

double Chrf::corpus(const Sentences& hypotheses, const std::vector<Sentences>& references) const {
  return score_of(sum_of(all_counts(hypotheses, references)));
}

double Chrf::sentence(const std::string& hypothesis, const Sentences& references) const {
  return score_of(counts(hypothesis, references));
}

std::string Chrf::own_signature() const {
  return std::string("case:") + (options_.lowercase ? "lc" : "mixed") +
         "|eff:" + (options_.eps_smoothing ? "no" : "yes") + "|nc:" + std::to_string(options_.char_order) +
         "|nw:" + std::to_string(options_.word_order) + "|space:" + (options_.whitespace ? "yes" : "no");
}

}  // namespace contextpool::eval
