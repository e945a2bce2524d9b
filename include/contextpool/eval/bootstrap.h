// Is one system better than another, or was it the choice of sentences? Paired bootstrap resampling (Koehn 2004), by
// sacreBLEU's definition. With s resamples of the test set (drawn with repetition, the same for both systems),
//
//   p = (1 + #{ |d_k| - mean |d| > |d| }) / (s + 1)
//
// where d_k is the difference of the scores on resample k and d that on the test set itself. The interval is half the
// distance between the scores at 2.5 and at 97.5 per cent of the resamples. Two systems with the same output have no
// difference to exceed: by this definition their p is 1 / (s + 1), which says nothing.
//
// The resamples are those that sacreBLEU draws with numpy for the same seed (12345 unless SACREBLEU_SEED says otherwise
// there). Scores are computed in float64; sacreBLEU with numpy 2 computes those of resamples in float32, and so agrees
// to about 1e-5.
#pragma once

#include <span>

#include "contextpool/eval/text_metric.h"

namespace contextpool::eval {

struct SystemScore {
  double score = 0;     // on the test set
  double mean = 0;      // over the resamples
  double interval = 0;  // mean +- interval: 95 per cent
};

struct PairedBootstrap {
  SystemScore baseline, system;
  double p_value = 1;
};

constexpr Resampling kDefaultResampling = {1000, 12345};

// Counts of the same sentences by two systems, as all_counts() gives them.
PairedBootstrap paired_bootstrap(const TextMetric& metric, const std::vector<Counts>& baseline,
                                 const std::vector<Counts>& system, const Resampling& resampling = kDefaultResampling);
// The same with resamples of the caller's: indices of sentences, as many for each resample as there are sentences.
PairedBootstrap paired_bootstrap(const TextMetric& metric, const std::vector<Counts>& baseline,
                                 const std::vector<Counts>& system, std::span<const std::int64_t> indices);
// One system alone.
SystemScore bootstrap(const TextMetric& metric, const std::vector<Counts>& system,
                      const Resampling& resampling = kDefaultResampling);

// What numpy's default_rng(seed).choice(sentences, (samples, sentences)) returns, row after row.
std::vector<std::int64_t> bootstrap_indices(std::int64_t sentences, const Resampling& resampling);

}  // namespace contextpool::eval
