#include "contextpool/eval/bootstrap.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "eval/numpy_random.h"

namespace contextpool::eval {
namespace {

// The interval leaves a fortieth of the resamples out at each end.
constexpr std::size_t kTail = 40;

using Row = std::vector<std::int64_t>;
using Draw = std::function<void(Row&)>;  // fills a row with the sentences of the next resample

Draw numpy_rows(std::int64_t sentences, std::int64_t seed) {
  TORCH_CHECK_VALUE(sentences >= 1 && sentences <= std::numeric_limits<std::int32_t>::max(),
                    "contextpool: bootstrap resampling of ", sentences, " sentences");
  TORCH_CHECK_VALUE(seed >= 0, "contextpool: bootstrap resampling with seed ", seed, "; expected 0 or more");
  return [random = NumpyRandom(static_cast<std::uint64_t>(seed)),
          count = static_cast<std::uint32_t>(sentences)](Row& row) mutable {
    for (auto& index : row) index = random.below(count);
  };
}

Counts sum_over(const std::vector<Counts>& counts, const Row& row) {
  Counts sum(counts.front().size());
  for (const auto index : row) {
    const auto& one = counts[static_cast<std::size_t>(index)];
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += one[k];
  }
  return sum;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

SystemScore summary(double score, std::vector<double> resampled) {
  std::sort(resampled.begin(), resampled.end());
  const auto low = resampled.size() / kTail, high = resampled.size() - low - 1;
  return {score, mean_of(resampled), 0.5 * (resampled[high] - resampled[low])};
}

PairedBootstrap paired(const TextMetric& metric, const std::vector<Counts>& baseline, const std::vector<Counts>& system,
                       std::int64_t samples, const Draw& draw) {
  std::vector<double> ours, theirs, differences;
  Row row(baseline.size());
  for (std::int64_t k = 0; k < samples; ++k) {
    draw(row);
    theirs.push_back(metric.score_of(sum_over(baseline, row)));
    ours.push_back(metric.score_of(sum_over(system, row)));
    differences.push_back(std::abs(ours.back() - theirs.back()));
  }
  PairedBootstrap result;
  result.baseline = summary(metric.score_of(sum_of(baseline)), std::move(theirs));
  result.system = summary(metric.score_of(sum_of(system)), std::move(ours));
  const auto difference = std::abs(result.baseline.score - result.system.score), mean = mean_of(differences);
  const auto larger =
      std::count_if(differences.begin(), differences.end(), [&](double d) { return d - mean > difference; });
  result.p_value = static_cast<double>(larger + 1) / static_cast<double>(samples + 1);
  return result;
}

void check(const std::vector<Counts>& baseline, const std::vector<Counts>& system, std::int64_t samples) {
  TORCH_CHECK_VALUE(!baseline.empty() && baseline.size() == system.size(), "contextpool: bootstrap of ",
                    baseline.size(), " sentences of the baseline and ", system.size(),
                    " of the system; expected the same test set");
  TORCH_CHECK_VALUE(samples >= 1, "contextpool: bootstrap with ", samples, " resamples; expected at least 1");
}

}  // namespace

PairedBootstrap paired_bootstrap(const TextMetric& metric, const std::vector<Counts>& baseline,
                                 const std::vector<Counts>& system, const Resampling& resampling) {
  check(baseline, system, resampling.samples);
  const auto draw = numpy_rows(static_cast<std::int64_t>(baseline.size()), resampling.seed);
  return paired(metric, baseline, system, resampling.samples, draw);
}

PairedBootstrap paired_bootstrap(const TextMetric& metric, const std::vector<Counts>& baseline,
                                 const std::vector<Counts>& system, std::span<const std::int64_t> indices) {
  check(baseline, system, 1);
  const auto sentences = baseline.size();
  TORCH_CHECK_VALUE(!indices.empty() && indices.size() % sentences == 0, "contextpool: bootstrap with ", indices.size(),
                    " indices; expected a multiple of the ", sentences, " sentences");
  for (const auto index : indices) {
    TORCH_CHECK_VALUE(index >= 0 && static_cast<std::size_t>(index) < sentences, "contextpool: bootstrap: index ",
                      index, " is not one of ", sentences, " sentences");
  }
  std::size_t at = 0;
  const auto draw = [&](Row& row) {
    std::copy_n(indices.begin() + static_cast<std::ptrdiff_t>(at), sentences, row.begin());
    at += sentences;
  };
  return paired(metric, baseline, system, static_cast<std::int64_t>(indices.size() / sentences), draw);
}

SystemScore bootstrap(const TextMetric& metric, const std::vector<Counts>& system, const Resampling& resampling) {
  return paired_bootstrap(metric, system, system, resampling).system;
}

std::vector<std::int64_t> bootstrap_indices(std::int64_t sentences, const Resampling& resampling) {
  const auto draw = numpy_rows(sentences, resampling.seed);
  std::vector<std::int64_t> all;
  Row row(static_cast<std::size_t>(sentences));
  for (std::int64_t k = 0; k < resampling.samples; ++k) {
    draw(row);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

}  // namespace contextpool::eval
