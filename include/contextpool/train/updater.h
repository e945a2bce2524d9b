// One step of training, given its batch:
//
//   g      = the gradient of the loss of all its parts (and of the regularizer), in all processes
//   update = the optimizer's at lr with g min(1, clip / |g|), and the average's, if loss and |g| are finite; else none,
//            and the model's buffers (BatchNorm's statistics) are as they were before the step
//
// Everything is only enqueued on the device. Whether the loss is finite is decided there, too: nothing here waits for
// it, and loss and norm may be read when they are needed, steps later.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
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
    torch::Tensor figures;  // float64 [2] on the device: the loss and the norm of its gradient, before clipping
    std::int64_t units;     // of the task, in all processes
  };
  Done step(const StepBatch& batch, std::int64_t step, double lr);

  Optimizer& optimizer() { return *optimizer_; }
  // In the first process alone, and only if the options want it.
  std::optional<Average>& average() { return average_; }

 private:
  struct Count {
    double weight;
    std::int64_t units;
  };
  Count count(const StepBatch& batch);  // in all processes
  torch::Tensor backward(const StepBatch& batch, std::int64_t step, double weight);
  void regularize(int sharers);  // adds that share of the regularizer's gradient

  std::shared_ptr<tasks::Task> task_;
  TrainOptions options_;
  std::shared_ptr<runtime::Processes> processes_;
  std::vector<Trainable> parameters_;
  std::vector<torch::Tensor> buffers_;  // of the model
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<Average> average_;
  std::unique_ptr<runtime::GradientSum> gradients_;  // none where this process is alone
};

}  // namespace contextpool::train
