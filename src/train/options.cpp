#include "contextpool/train/options.h"

#include <c10/util/Exception.h>

#include <cmath>

namespace contextpool::train {
namespace {

constexpr std::int64_t kMostLoaders = 256;

void check(bool ok, const char* name, double value, const char* expected) {
  TORCH_CHECK_VALUE(ok && std::isfinite(value), "contextpool: ", name, " is ", value, ", expected ", expected);
}

void check_count(const char* name, std::int64_t value, std::int64_t least) {
  TORCH_CHECK_VALUE(value >= least, "contextpool: ", name, " is ", value, ", expected at least ", least);
}

}  // namespace

void validate(const TrainOptions& options) {
  const auto share = [](double x) { return x >= 0 && x < 1; };
  for (const auto& stage : options.stages) check_epochs(stage);
  const Schedule schedule(options.stages, options.schedule, options.final_share);
  check(options.final_share >= 0 && options.final_share <= 1, "final-lr", options.final_share, "0 to 1");
  validate(options.optimizer);
  check(options.clip >= 0, "clip", options.clip, "0 (none) or more");
  check(share(options.ema), "ema", options.ema, "0 (none) <= ema < 1");
  check_count("accumulate", options.accumulate, 1);
  check_count("processes", options.processes, 1);
  check_count("seed", options.seed, 0);
  check_count("checkpoint-every", options.checkpoint_every, 1);
  check(options.checkpoint_minutes >= 0, "checkpoint-minutes", options.checkpoint_minutes, "0 (none) or more");
  check_count("keep", options.keep, 1);
  check_count("loaders", options.loaders, 0);
  TORCH_CHECK_VALUE(options.loaders <= kMostLoaders, "contextpool: loaders is ", options.loaders, ", expected at most ",
                    kMostLoaders);
  check_count("give-up", options.give_up, 1);
}

}  // namespace contextpool::train
