#include "contextpool/eval/text_metric.h"

#include <c10/util/Exception.h>

namespace contextpool::eval {

std::string TextMetric::signature(std::int64_t references, const std::optional<Resampling>& resampling) const {
  auto text = "nrefs:" + std::to_string(references);
  if (resampling) {
    text += "|bs:" + std::to_string(resampling->samples) + "|seed:" + std::to_string(resampling->seed);
  }
  return text + "|" + own_signature() + "|version:2.6.0";
}

std::vector<Counts> TextMetric::all_counts(const Sentences& hypotheses,
                                           const std::vector<Sentences>& references) const {
  TORCH_CHECK_VALUE(!hypotheses.empty(), "contextpool: ", name(), " of no sentences; expected at least one line");
  TORCH_CHECK_VALUE(!references.empty(), "contextpool: ", name(), " needs at least one reference");
  for (std::size_t k = 0; k < references.size(); ++k) {
    TORCH_CHECK_VALUE(references[k].size() == hypotheses.size(), "contextpool: ", name(), " of ", hypotheses.size(),
                      " sentences, but reference ", k + 1, " has ", references[k].size());
  }
  std::vector<Counts> all;
  all.reserve(hypotheses.size());
  Sentences of_one(references.size());
  for (std::size_t i = 0; i < hypotheses.size(); ++i) {
    for (std::size_t k = 0; k < references.size(); ++k) of_one[k] = references[k][i];
    all.push_back(counts(hypotheses[i], of_one));
  }
  return all;
}

Counts sum_of(const std::vector<Counts>& counts) {
  TORCH_CHECK_VALUE(!counts.empty(), "contextpool: the sum of no counts");
  Counts sum(counts.front().size());
  for (const auto& one : counts) {
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += one[k];
  }
  return sum;
}

}  // namespace contextpool::eval
