// What a training step of a model costs, on batches that were made before: a whole step of the trainer's (updater.h),
// with the copy of its batch to the device, without the making of the batch, and without log and checkpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contextpool/models/registry.h"
#include "contextpool/runtime/measure.h"
#include "contextpool/runtime/profile.h"
#include "contextpool/tasks/registry.h"
#include "contextpool/train/options.h"
#include "contextpool/train/updater.h"

namespace contextpool::train {

class MeasuredModel {
 public:
  // options: one stage, one process. Opens the data and builds the model on the device.
  MeasuredModel(std::string name, const models::Family& family, const OptionList& model_options,
                const tasks::TaskKind& kind, const OptionList& data_options, const TrainOptions& options);

  void warm_up(int steps);
  // `steps` more, timed together. Models that are compared take turns, so that a machine that becomes slower is so for
  // all of them.
  void take_turn(int steps);
  // Bytes: the model with its optimizer's state, and the most that is allocated in a step beyond that. Before steps are
  // recorded: a replay allocates nothing.
  void measure_memory();
  // From now on steps are replayed, where they can be (updater.h).
  void record_steps();
  bool replaying() const { return updater_->replaying(); }
  std::vector<std::string> take_notes() { return updater_->take_notes(); }
  std::vector<runtime::OperatorTime> profile(int steps);

  // Medians of the turns.
  struct Cost {
    runtime::Times times;  // of a step
    double units_per_second = 0;
    double flops_per_second = 0;  // of forward and backward, three times the forward's; without the pooling sum
    std::int64_t state_memory = 0, step_memory = 0;
  };
  Cost cost() const;
  const std::string& name() const { return name_; }
  std::int64_t parameters() const { return parameters_; }

 private:
  void step();

  std::string name_;
  torch::Device device_;
  std::shared_ptr<tasks::Task> task_;
  std::unique_ptr<Updater> updater_;
  std::vector<StepBatch> batches_;
  double units_ = 0;           // of a batch, the mean
  double flops_per_unit_ = 0;  // of a forward pass
  double lr_ = 0;
  std::int64_t parameters_ = 0, steps_ = 0, state_memory_ = 0, step_memory_ = 0;
  std::vector<runtime::Times> turns_;
};

// Batches that `threads` threads make for a training, on the CPU: units a second, and units a second of processor time,
// which on a busy machine is what one core would do alone.
struct LoadingSpeed {
  double units_per_second = 0, units_per_processor_second = 0;
};
LoadingSpeed loading_speed(const tasks::Task& task, const TrainOptions& options, int threads, double seconds);

}  // namespace contextpool::train
