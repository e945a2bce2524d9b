// The training loop. Step s (from 0) of a run, whoever computes it and however often it was stopped before:
//
//   batch   = the task's, a pure function of (seed, s), made ahead on other threads
//   dropout = drawn from (seed, s)
//   loss    = the task's, over the batch, in micro-batches (and, not logged, its regularizer)
//   update  = the optimizer's at lr(s) with the clipped gradient, unless loss or gradient is not finite: then none
//
// so that weights, optimizer, average and step count are all there is to save. On the CPU, with the same number of
// threads, a run that was stopped or killed and resumed ends with the same bits as one that was not.
//
// Each checkpoint keeps the identity of the data (of a text, its size and CRC-32C): a run is resumed with the same data
// only, wherever they lie. Beside the checkpoints of every checkpoint_every steps there are some by the clock, which
// change nothing else: not the log, not the result.
//
// A run folder: config.toml, log.jsonl, events.* and checkpoints/ (io/checkpoint.h). A line of the log is an object
// with step, stage, loss and the task's words for it (bpc), lr, gradient_norm and the units so far (tokens); skipped:
// true (loss null) for a step without update; dev_loss and other scores where the dev data were scored; and time, which
// alone differs from run to run.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "contextpool/data/prefetch.h"
#include "contextpool/io/checkpoint.h"
#include "contextpool/io/events.h"
#include "contextpool/runtime/processes.h"
#include "contextpool/tasks/task.h"
#include "contextpool/train/average.h"
#include "contextpool/train/observer.h"
#include "contextpool/train/optimizer.h"
#include "contextpool/train/options.h"

namespace contextpool::train {

class Log;

struct Start {
  std::filesystem::path folder;                             // of the run
  bool resume = false;                                      // else the folder must not exist
  std::string config;                                       // text of config.toml
  bool unverified = false;                                  // resume from a checkpoint without asking its manifest
  std::shared_ptr<runtime::Processes> processes = nullptr;  // which train together; none: this one alone
};

// Under which the processes of a job note the run folder that they made or resumed (runtime::Processes::note).
constexpr const char* kRunNote = "run";

enum class Outcome { finished, stopped };

class Trainer {
 public:
  // The task is open, and built here. Nothing is written before options, data and, when resuming, the checkpoint were
  // found good; to a run that is finished, nothing at all. A run whose checkpoints are all unreadable is refused, not
  // begun again.
  Trainer(TrainOptions options, std::shared_ptr<tasks::Task> task, const Start& start, Observer& observer);
  ~Trainer();

  // To the end of the run, or until the observer wants it to stop; a checkpoint is written either way. Throws after
  // give_up skipped steps in a row, if the last checkpoint cannot be written, and if the run folder was removed. A run
  // that fails in its first step leaves no folder.
  Outcome run();

  std::int64_t step() const { return step_; }  // done
  bool finished() const { return step_ >= schedule_.steps(); }
  tasks::Task& task() { return *task_; }

 private:
  struct Update {
    double loss, lr, gradient_norm;
    bool skipped;
  };
  using StepBatch = std::vector<tasks::Batch>;  // the parts of a step
  void join(const Start& start);                // the other processes
  void open_run(const Start& start);
  std::optional<std::int64_t> resume(const Start& start);
  void restore(const io::Checkpoint& checkpoint);
  void train_step();
  void follow(bool due);  // the end of a step in a process that does not write
  bool saves_now(bool due);
  io::NamedTensors optimizer_state();  // of all processes, in the first one
  bool time_for_checkpoint() const;
  std::int64_t first_part() const { return processes_->rank() * options_.accumulate; }  // of this process
  Update take_step();
  tasks::StepPlace place(std::int64_t step) const;
  StepBatch make_batch(std::int64_t step) const;
  torch::Tensor backward(const StepBatch& batch);
  void regularize(int sharers);          // adds that share of the regularizer's gradient
  double count(const StepBatch& batch);  // the weight of the step in all processes, and its units
  std::optional<tasks::Score> score_dev();
  std::vector<nn::WindowStatistics> look_at_windows();
  void record(const StepReport& report);
  StepReport report(const Update& update, std::optional<tasks::Score> dev);
  void save(const std::optional<tasks::Score>& dev);         // throws FileError
  bool try_to_save(const std::optional<tasks::Score>& dev);  // says so if it fails
  void save_last(const std::optional<tasks::Score>& dev);    // with which the run ends
  template <typename F>
  bool try_to_write(const std::string& what, F&& write);

  TrainOptions options_;
  std::shared_ptr<tasks::Task> task_;
  Observer& observer_;
  std::shared_ptr<runtime::Processes> processes_;
  Schedule schedule_;
  torch::Device device_;
  std::vector<Trainable> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<Average> average_;
  std::unique_ptr<runtime::GradientSum> gradients_;  // none where this process is alone

  std::int64_t step_units_ = 0;  // of the step that was last
  std::int64_t step_ = 0, units_ = 0, skipped_ = 0, skipped_in_a_row_ = 0;
  std::optional<double> best_;

  std::optional<io::CheckpointWriter> checkpoints_;
  std::unique_ptr<Log> log_;
  std::optional<io::EventWriter> events_;
  bool log_failed_ = false;
  std::filesystem::path fresh_;  // the folder that this object made, until its first step is done

  std::chrono::steady_clock::time_point clock_, saved_at_;
  bool saved_ = false;  // a checkpoint, since the start
  double waited_ = 0;   // seconds of this step, for data
  double seconds_per_unit_ = 0;
  std::optional<data::Prefetch<StepBatch>> batches_;  // last: its threads ask all of the above
};

}  // namespace contextpool::train
