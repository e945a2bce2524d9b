// The training loop. Step s (from 0) of a run, whoever computes it and however often it was stopped before:
//
//   batch   = the task's, a pure function of (seed, s), made ahead on other threads
//   dropout = drawn from (seed, s)
//   loss    = the task's, over the batch, in micro-batches (and, not logged, its regularizer)
//   update  = the optimizer's at lr(s) with the clipped gradient, unless loss or gradient is not finite: then none
//
// (one step: updater.h), so that weights, optimizer, average and step count are all there is to save. On the CPU, with
// the same number of threads, a run that was stopped or killed and resumed ends with the same bits as one that was not.
// On a GPU the next steps are enqueued before the loss of this one is read, logged and shown.
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
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "contextpool/data/prefetch.h"
#include "contextpool/io/checkpoint.h"
#include "contextpool/io/events.h"
#include "contextpool/runtime/processes.h"
#include "contextpool/runtime/readback.h"
#include "contextpool/tasks/task.h"
#include "contextpool/train/observer.h"
#include "contextpool/train/options.h"
#include "contextpool/train/updater.h"

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
  // A step that the device may still be working on.
  struct Enqueued {
    std::int64_t number, units;  // counted from the start of the run, with this one
    double lr;
    std::chrono::steady_clock::time_point start;
    double waited;              // seconds, for data
    runtime::Readback figures;  // loss, gradient's norm
  };
  void join(const Start& start);  // the other processes
  void open_run(const Start& start);
  std::optional<std::int64_t> resume(const Start& start);
  void restore(const io::Checkpoint& checkpoint);
  void train_step();
  void follow(bool saves);  // the end of a step in a process that does not write
  bool saves_now(bool due);
  io::NamedTensors optimizer_state();  // of all processes, in the first one
  bool time_for_checkpoint() const;
  tasks::StepPlace place(std::int64_t step) const;
  void take_step();
  std::vector<StepReport> read(std::int64_t behind);  // waits until no more steps than that are enqueued
  std::optional<tasks::Score> score_dev();
  std::vector<nn::WindowStatistics> look_at_windows();
  void record(const StepReport& report);
  StepReport report(const Enqueued& step, double loss, double norm);
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
  std::int64_t behind_;
  std::optional<Updater> updater_;
  std::deque<Enqueued> enqueued_;

  std::int64_t step_ = 0, units_ = 0;                // enqueued
  std::int64_t skipped_ = 0, skipped_in_a_row_ = 0;  // of those that were read
  std::optional<double> best_;

  std::optional<io::CheckpointWriter> checkpoints_;
  std::unique_ptr<Log> log_;
  std::optional<io::EventWriter> events_;
  bool log_failed_ = false;
  std::filesystem::path fresh_;  // the folder that this object made, until its first step is done

  std::chrono::steady_clock::time_point read_at_, saved_at_;
  bool saved_ = false;  // a checkpoint, since the start
  double seconds_per_unit_ = 0;
  std::optional<data::Prefetch<StepBatch>> batches_;  // last: its threads ask all of the above
};

}  // namespace contextpool::train
