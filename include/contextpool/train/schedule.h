// How long, how large and how fast: the stages of a run and the learning rate of each of its steps. With s the step
// (from 0), w the warm-up steps and T the steps of the run,
//
//   lr(s) = lr of the stage * min(1, (s + 1) / w) * f(s)
//
//   constant      f = 1
//   cosine        f = final + (1 - final) (1 + cos(pi (s - w) / (T - w))) / 2 after the warm-up
//   inverse_sqrt  f = sqrt(w / (s + 1)) after the warm-up
//   staged        f = 1, and s counts from the start of the stage: each stage warms up anew
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace contextpool::train {

struct Stage {
  std::int64_t length = 256;  // tokens of a row
  std::int64_t batch = 16;    // rows of a step
  std::int64_t steps = 1000;
  double lr = 3e-4;
  std::int64_t warmup = 0;  // steps; but for "staged" only the first stage's counts
  double epochs = 0;        // where above 0, `steps` and `warmup` follow from these and the size of the data
  double warmup_epochs = 0;
};

// The stage with its steps counted, where it is given in epochs of so many steps (0: the data have none, an error).
Stage counted(Stage stage, std::int64_t steps_per_epoch);
void check_epochs(const Stage& stage);  // an error where its numbers of epochs cannot be

std::vector<std::string> schedules();

class Schedule {
 public:
  Schedule(std::vector<Stage> stages, std::string kind, double final_share);

  std::int64_t steps() const { return steps_; }
  const std::vector<Stage>& stages() const { return stages_; }
  std::int64_t stage_of(std::int64_t step) const;  // index; step in 0 .. steps() - 1
  double lr(std::int64_t step) const;
  std::int64_t items_before(std::int64_t step) const;  // the batches of the steps before it, added up

 private:
  std::vector<Stage> stages_;
  std::string kind_;
  double final_share_;
  std::int64_t steps_ = 0;
};

}  // namespace contextpool::train
