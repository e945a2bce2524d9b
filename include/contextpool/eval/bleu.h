// BLEU (Papineni et al. 2002), equal to sacreBLEU's:
//
//   BLEU = BP exp(1/N sum_{n<=N} log p_n),   p_n = 100 matches_n / ngrams_n,   BP = min(1, exp(1 - ref/hyp))
//
// where an n-gram of the hypothesis matches at most as often as it is in the reference that has most of it, and ref is
// the length of the reference closest to the hypothesis (the shorter one of two). Where no n-gram matches, p_n is, by
// smoothing: exp, 100 / (2^k ngrams_n) for the k-th such n; floor, 100 value / ngrams_n; add-k, value is added to
// matches and n-grams of n > 1; none, 0.
#pragma once

#include "contextpool/eval/text_metric.h"

namespace contextpool::eval {

struct BleuOptions {
  std::string tokenizer = "13a";  // or intl, char, none
  bool lowercase = false;
  std::string smoothing = "exp";          // or floor, add-k, none
  std::optional<double> smoothing_value;  // of floor (0.1) and add-k (1)
  std::int64_t max_order = 4;
  // Orders longer than the hypothesis are left out of the mean: for scores of single sentences.
  bool effective_order = false;
};

struct BleuScore {
  double score = 0;
  std::vector<double> precisions;  // percent, n = 1 ... max_order
  double brevity_penalty = 1;
  std::int64_t hypothesis_length = 0, reference_length = 0;  // tokens

  // "71.0/47.5/34.3/24.5 (BP = 1.000 ratio = 1.002 hyp_len = 12106 ref_len = 12082)"
  std::string details() const;
};

class Bleu : public TextMetric {
 public:
  explicit Bleu(BleuOptions options = {});

  std::string name() const override { return "BLEU"; }
  // [hypothesis length, reference length, matches of n = 1 ... , n-grams of n = 1 ...]
  Counts counts(const std::string& hypothesis, const Sentences& references) const override;
  double score_of(const Counts& counts) const override { return score(counts).score; }

  BleuScore score(const Counts& counts) const;
  BleuScore corpus(const Sentences& hypotheses, const std::vector<Sentences>& references) const;
  BleuScore sentence(const std::string& hypothesis, const Sentences& references) const;

  const BleuOptions& options() const { return options_; }

 protected:
  std::string own_signature() const override;

 private:
  std::vector<std::u32string> tokens(const std::string& text) const;

  BleuOptions options_;
  double smoothing_value_;
};

}  // namespace contextpool::eval
