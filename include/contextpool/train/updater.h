// One step of training, given its batch:
//
//   g      = the gradient of the loss of all its parts (and of the regularizer), in all processes
//   update = the optimizer's at lr with g min(1, clip / |g|), and the average's, if loss and |g| are finite; else none,
//            and the model's buffers (BatchNorm's statistics) are as they were before the step
//
// Everything is only enqueued on the device. Whether the loss is finite is decided there, too: nothing here waits for
// it, and loss and norm may be read when they are needed, steps later. On a GPU, in one process, a step is recorded
// once steps of its shapes have been taken, and then replayed as CUDA graphs (runtime/graph.h): the same kernels in the
// same order. Host code, such as hooks on parameters, runs when a step is recorded and not when it is replayed.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contextpool/runtime/processes.h"
#include "contextpool/tasks/task.h"
#include "contextpool/train/average.h"
#include "contextpool/train/optimizer.h"
#include "contextpool/train/options.h"

namespace contextpool::train {

// The parts of a step's batch in this process: one for each micro-batch. In pinned memory where the model is on a GPU.
using StepBatch = std::vector<tasks::Batch>;
StepBatch make_step_batch(const tasks::Task& task, const TrainOptions& options, const tasks::StepPlace& place,
                          int rank);

class Updater {
 public:
  // Of a task that is built, in processes that are connected: all start with the first one's weights.
  Updater(std::shared_ptr<tasks::Task> task, const TrainOptions& options,
          std::shared_ptr<runtime::Processes> processes);

  struct Done {
    // float64 [2] on the device: the loss and the norm of its gradient, before clipping. The next step may write to it.
    torch::Tensor figures;
    std::int64_t units;  // of the task, in all processes
  };
  ~Updater();
  Done step(const StepBatch& batch, std::int64_t step, double lr);
  // Whether steps may be recorded from now on, where they can be; at first, as the options say. If not, what was
  // recorded is given up, with its memory.
  void set_recording(bool allowed);
  bool replaying() const { return records_ && recorded_ != nullptr; }
  // Lines for the user since the last call.
  std::vector<std::string> take_notes();

  Optimizer& optimizer() { return *optimizer_; }
  // In the first process alone, and only if the options want it.
  std::optional<Average>& average() { return average_; }

 private:
  struct Count {
    double weight;
    std::int64_t units;
  };
  class Remembered;
  struct Recorded;
  using Shapes = std::vector<std::pair<std::vector<std::int64_t>, torch::ScalarType>>;

  Count count(const StepBatch& batch);  // in all processes
  std::vector<torch::Tensor> inputs_of(const tasks::Batch& part);
  void seed_part(std::int64_t step, std::size_t part);
  // A step: begin, add_part for each part, update. These three are what is recorded.
  void begin();
  void add_part(const std::vector<torch::Tensor>& inputs, bool last);
  torch::Tensor update();        // the figures
  void regularize(int sharers);  // adds that share of the regularizer's gradient

  bool replays(const StepBatch& batch);  // records the step if it is time to
  void record(const StepBatch& batch);
  torch::Tensor replay(const StepBatch& batch, std::int64_t step);

  std::shared_ptr<tasks::Task> task_;
  TrainOptions options_;
  std::shared_ptr<runtime::Processes> processes_;
  std::vector<Trainable> parameters_;
  std::vector<torch::Tensor> buffers_;  // of the model
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<Average> average_;
  std::unique_ptr<runtime::GradientSum> gradients_;  // none where this process is alone

  // On the device, where a graph finds them: the loss so far, what losses are divided by, and the learning rate.
  torch::Tensor total_, weight_, lr_;
  std::unique_ptr<Remembered> buffers_before_;

  bool can_record_ = false, records_ = false;
  std::unique_ptr<Recorded> recorded_;
  Shapes recorded_shapes_, shapes_before_;
  int alike_ = 0;  // steps in a row that had the shapes of the one before
  std::string note_;
};

}  // namespace contextpool::train
