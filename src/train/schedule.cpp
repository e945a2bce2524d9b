#include "contextpool/train/schedule.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/words.h"

namespace contextpool::train {
namespace {

constexpr double kMostEpochs = 1e9;
constexpr double kMostTokens = 1e17;  // far beyond any run, and counted in 63 bits whatever the stages

}  // namespace

std::vector<std::string> schedules() { return {"constant", "cosine", "inverse_sqrt", "staged"}; }

Stage counted(Stage stage, std::int64_t steps_per_epoch) {
  if (stage.epochs == 0 && stage.warmup_epochs == 0) return stage;
  check_epochs(stage);
  TORCH_CHECK_VALUE(steps_per_epoch > 0,
                    "contextpool: these data are sampled at random and have no epochs; give --steps ",
                    "and --warmup instead");
  const auto steps = [&](double epochs) {
    const auto count = std::ceil(epochs * static_cast<double>(steps_per_epoch));
    TORCH_CHECK_VALUE(count <= kMostTokens, "contextpool: ", epochs, " epochs of ", steps_per_epoch, " steps are ",
                      count, " steps, expected at most ", kMostTokens);
    return static_cast<std::int64_t>(count);
  };
  if (stage.epochs > 0) stage.steps = steps(stage.epochs);
  if (stage.warmup_epochs > 0) stage.warmup = steps(stage.warmup_epochs);
  return stage;
}

void check_epochs(const Stage& stage) {
  const auto is_count = [](double epochs) { return epochs >= 0 && epochs <= kMostEpochs; };
  TORCH_CHECK_VALUE(is_count(stage.epochs) && is_count(stage.warmup_epochs), "contextpool: a stage of ", stage.epochs,
                    " epochs, ", stage.warmup_epochs, " of them warm-up; expected numbers from 0 to ", kMostEpochs);
}

Schedule::Schedule(std::vector<Stage> stages, std::string kind, double final_share)
    : stages_(std::move(stages)), kind_(std::move(kind)), final_share_(final_share) {
  check_word("contextpool", "schedule", kind_, schedules());
  TORCH_CHECK_VALUE(!stages_.empty(), "contextpool: a run without stages");
  for (const auto& s : stages_) {
    TORCH_CHECK_VALUE(s.length > 0 && s.batch > 0 && s.steps > 0 && s.lr > 0 && std::isfinite(s.lr) && s.warmup >= 0,
                      "contextpool: a stage of length ", s.length, ", batch ", s.batch, ", ", s.steps, " steps, lr ",
                      s.lr, " and warm-up ", s.warmup, "; expected positive numbers (a warm-up may be 0)");
    const auto tokens = static_cast<double>(s.steps) * static_cast<double>(s.batch) * static_cast<double>(s.length);
    TORCH_CHECK_VALUE(tokens <= kMostTokens, "contextpool: a stage of ", s.steps, " steps of ", s.batch, " rows of ",
                      s.length, " tokens has more than ", kMostTokens, " tokens, the most that a stage may have");
    steps_ += s.steps;
  }
  TORCH_CHECK_VALUE(kind_ != "inverse_sqrt" || stages_.front().warmup > 0,
                    "contextpool: the schedule inverse_sqrt needs a warm-up of at least 1 step");
}

std::int64_t Schedule::stage_of(std::int64_t step) const {
  TORCH_CHECK_VALUE(step >= 0 && step < steps_, "contextpool: step ", step, " of a run of ", steps_);
  std::int64_t index = 0;
  while (step >= stages_[index].steps) step -= stages_[index++].steps;
  return index;
}

std::int64_t Schedule::items_before(std::int64_t step) const {
  std::int64_t items = 0;
  for (const auto& stage : stages_) {
    const auto steps = std::min(step, stage.steps);
    items += steps * stage.batch;
    step -= steps;
  }
  return items;
}

double Schedule::lr(std::int64_t step) const {
  const auto index = stage_of(step);
  const auto& stage = stages_[index];
  if (kind_ == "staged") {
    for (std::int64_t i = 0; i < index; ++i) step -= stages_[i].steps;
  }
  const auto warmup = static_cast<double>(kind_ == "staged" ? stage.warmup : stages_.front().warmup);
  const auto done = static_cast<double>(step + 1);
  if (done <= warmup) return stage.lr * done / warmup;
  if (kind_ == "inverse_sqrt") return stage.lr * std::sqrt(warmup / done);
  if (kind_ != "cosine") return stage.lr;
  const auto progress = (static_cast<double>(step) - warmup) / std::max(1.0, static_cast<double>(steps_) - warmup);
  return stage.lr * (final_share_ + (1 - final_share_) * (1 + std::cos(std::numbers::pi * progress)) / 2);
}

}  // namespace contextpool::train
