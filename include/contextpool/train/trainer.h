// The training loop. Step s (from 0) of a run, whoever computes it and however often it was stopped before:
//
//   batch   = windows drawn from (seed, s)
//   dropout = drawn from (seed, s)
//   loss    = mean cross-entropy over the batch, in micro-batches (and, not logged, the loss of adaptive spans)
//   update  = AdamW at lr(s) with the clipped gradient, unless loss or gradient is not finite: then none
//
// so that weights, optimizer, average and step count are all there is to save. On the CPU, with the same number of
// threads, a run that was stopped or killed and resumed ends with the same bits as one that was not.
//
// The text is known by its size and CRC-32C, which each checkpoint keeps: a run is resumed with the same text only,
// wherever it lies. Beside the checkpoints of every checkpoint_every steps there are some by the clock, which change
// nothing else: not the log, not the result.
//
// A run folder: config.toml, log.jsonl, events.* and checkpoints/ (io/checkpoint.h). A line of the log is an object
// with step, stage, loss, bpc, lr, gradient_norm and tokens (all so far); skipped: true (loss null) for a step without
// update; dev_loss and dev_bpc where the dev text was scored; and time, which alone differs from run to run.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "contextpool/data/text.h"
#include "contextpool/io/checkpoint.h"
#include "contextpool/io/events.h"
#include "contextpool/models/language_model.h"
#include "contextpool/train/adamw.h"
#include "contextpool/train/average.h"
#include "contextpool/train/observer.h"
#include "contextpool/train/options.h"

namespace contextpool::train {

class Log;

struct Start {
  std::filesystem::path folder;  // of the run
  bool resume = false;           // else the folder must not exist
  std::string config;            // text of config.toml
  bool unverified = false;       // resume from a checkpoint without asking its manifest
};

enum class Outcome { finished, stopped };

class Trainer {
 public:
  // Nothing is written before options, text and, when resuming, the checkpoint were found good; to a run that is
  // finished, nothing at all. A run whose checkpoints are all unreadable is refused, not begun again.
  Trainer(TrainOptions options, const Start& start, Observer& observer);
  ~Trainer();

  // To the end of the run, or until the observer wants it to stop; a checkpoint is written either way. Throws after
  // give_up skipped steps in a row, if the last checkpoint cannot be written, and if the run folder was removed. A run
  // that fails in its first step leaves no folder.
  Outcome run();

  std::int64_t step() const { return step_; }  // done
  bool finished() const { return step_ >= schedule_.steps(); }
  models::LanguageModel& model() { return model_; }

 private:
  struct Update {
    double loss, lr, gradient_norm;
    bool skipped;
  };
  void open_run(const Start& start);
  std::optional<std::int64_t> resume(const Start& start);
  void restore(const io::Checkpoint& checkpoint);
  void train_step();
  bool time_for_checkpoint() const;
  Update take_step();
  torch::Tensor backward(const Stage& stage);
  std::optional<double> score_dev();
  // Of each layer with ContextPool, on the first row of the dev text.
  std::vector<nn::WindowStatistics> look_at_windows();
  void record(const Update& update, std::optional<double> dev_loss, std::vector<nn::WindowStatistics> windows);
  StepReport report(const Update& update, std::optional<double> dev_loss);
  void save(std::optional<double> dev_loss);         // throws FileError
  bool try_to_save(std::optional<double> dev_loss);  // says so if it fails
  void save_last(std::optional<double> dev_loss);    // with which the run ends
  template <typename F>
  bool try_to_write(const std::string& what, F&& write);

  TrainOptions options_;
  Observer& observer_;
  Schedule schedule_;
  torch::Device device_;
  data::Text text_;
  models::LanguageModel model_;
  io::NamedTensors parameters_;
  AdamW adamw_;
  std::optional<Average> average_;

  std::int64_t step_ = 0, tokens_ = 0, skipped_ = 0, skipped_in_a_row_ = 0;
  std::optional<double> best_;

  std::optional<io::CheckpointWriter> checkpoints_;
  std::unique_ptr<Log> log_;
  std::optional<io::EventWriter> events_;
  bool log_failed_ = false;
  std::filesystem::path fresh_;  // the folder that this object made, until its first step is done

  std::chrono::steady_clock::time_point clock_, saved_at_;
  bool saved_ = false;  // a checkpoint, since the start
  double seconds_per_token_ = 0;
};

}  // namespace contextpool::train
