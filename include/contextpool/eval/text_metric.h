// A score of translations against references, from counts that add up over sentences. Scores, names and signatures are
// sacreBLEU's (2.6.0), so that a figure can be set beside any other that was made with it.
//
// Texts are UTF-8; each invalid part counts as U+FFFD. Empty lines are sentences like others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace contextpool::eval {

using Sentences = std::vector<std::string>;
using Counts = std::vector<std::int64_t>;  // of one sentence, or their sum over several

// What a signature says of bootstrap resampling, where there was any.
struct Resampling {
  std::int64_t samples, seed;
};

class TextMetric {
 public:
  virtual ~TextMetric() = default;

  virtual std::string name() const = 0;  // "BLEU", "chrF2++"
  virtual Counts counts(const std::string& hypothesis, const Sentences& references) const = 0;
  virtual double score_of(const Counts& counts) const = 0;  // 0 ... 100
  // "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0": how the score was made. The version is that of the
  // sacreBLEU whose scores these are.
  std::string signature(std::int64_t references, const std::optional<Resampling>& resampling = {}) const;

  // Of every sentence; references[k][i] is the k-th reference of hypothesis i. Unlike sacreBLEU, which takes the
  // shortest, lists of unequal lengths are an error.
  std::vector<Counts> all_counts(const Sentences& hypotheses, const std::vector<Sentences>& references) const;

 protected:
  TextMetric() = default;
  TextMetric(const TextMetric&) = default;
  TextMetric& operator=(const TextMetric&) = default;
  virtual std::string own_signature() const = 0;  // "case:mixed|..."
};

Counts sum_of(const std::vector<Counts>& counts);

}  // namespace contextpool::eval
