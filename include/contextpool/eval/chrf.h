// chrF (Popović 2015) and, with word_order 2, chrF++ (2017), equal to sacreBLEU's:
//
//   chrF = 100 (1 + beta^2) P R / (beta^2 P + R)
//
// P and R are the means, over the orders of n-grams of characters (spaces left out) and of words (one punctuation mark
// at an end set apart), of precision and recall; orders that one side lacks are left out. Of several references the
// one with the best score counts.
#pragma once

#include "contextpool/eval/text_metric.h"

namespace contextpool::eval {

struct ChrfOptions {
  std::int64_t char_order = 6, word_order = 0, beta = 2;
  bool lowercase = false;
  bool whitespace = false;  // count spaces as characters
  bool eps_smoothing =
      false;  // the mean of the orders' F scores, absent orders as 1e-16, as chrF++.py and Moses have it
};

class Chrf : public TextMetric {
 public:
  explicit Chrf(ChrfOptions options = {});

  std::string name() const override;
  // For each order, characters first: [n-grams of the hypothesis, of the reference, matches]
  Counts counts(const std::string& hypothesis, const Sentences& references) const override;
  double score_of(const Counts& counts) const override;

  double corpus(const Sentences& hypotheses, const std::vector<Sentences>& references) const;
  double sentence(const std::string& hypothesis, const Sentences& references) const;

  const ChrfOptions& options() const { return options_; }

 protected:
  std::string own_signature() const override;

 private:
  ChrfOptions options_;
};

}  // namespace contextpool::eval
