// A task: what is learnt, from which data, and how well. The trainer sees models and data through this alone;
// checkpoints, log, schedule, optimizer and loop are its own and the same for all.
//
// A task is opened (its data read and checked, its model's options completed from them), then built. batch() is a pure
// function of its arguments and may be called on several threads at once; everything else is the training thread's.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contextpool/io/safetensors.h"
#include "contextpool/models/family.h"
#include "contextpool/nn/window_statistics.h"

namespace contextpool::tasks {

// Which step of a run: all that a batch may depend on.
struct StepPlace {
  std::int64_t seed = 0;
  std::int64_t step = 0;          // of the run, from 0
  std::int64_t length = 0;        // of its stage
  std::int64_t batch = 0;         // of its stage
  std::int64_t items_before = 0;  // the batches of all steps before, added up
};

// Part `index` of `count` equal ones of a step's batch: micro-batches, and later ranks.
struct Part {
  std::int64_t index = 0, count = 1;
};

struct Batch {
  std::vector<torch::Tensor> tensors;  // on the CPU as made; the trainer moves them to the model's device,
  double weight = 0;                   // what the loss of this part is divided by, together with those of the others
  std::int64_t units = 0;              // what it counts for in the log: tokens, images
  std::size_t stay = 0;                // but the last so many tensors, which the loss reads on the CPU
};

// A figure by its name, such as {"bpc", 1.78}.
using Figure = std::pair<std::string, double>;

// A score on held-out data. The first figure is the one by which the best checkpoint is chosen; the line of progress
// shows figure `headline`.
struct Score {
  std::vector<Figure> figures;
  bool higher_is_better = false;
  std::size_t headline = 0;
};

class TaskKind;  // tasks/registry.h

class Task {
 public:
  virtual ~Task() = default;

  const TaskKind& kind() const { return kind_; }
  const OptionList& options() const { return options_; }

  // The model.
  const models::Family& family() const { return family_; }
  const OptionList& model_options() const { return model_options_; }
  // Builds the model with torch's generator as it stands.
  void build(torch::Device device);
  const std::shared_ptr<torch::nn::Module>& model() const { return model_; }
  torch::Device device() const { return device_; }

  // The data.
  // What the data are, as JSON: kept with each checkpoint. Throws if a resumed run has others.
  virtual std::string data_identity() const = 0;
  virtual void check_data(const std::string& trained_on, const std::string& checkpoint) const = 0;
  // What the model's file carries beside its options; `place` is the step that was last.
  virtual io::Metadata metadata(const StepPlace& /*place*/) const { return {}; }
  // Throws if the data are too few for batches of this stage.
  virtual void check_stage(std::int64_t /*length*/, std::int64_t /*batch*/) const {}
  // Steps that an epoch of such batches has; 0 where data are sampled without epochs.
  virtual std::int64_t steps_per_epoch(std::int64_t /*length*/, std::int64_t /*batch*/) const { return 0; }
  // Units of a step, for the time that is left.
  virtual double units_per_step(std::int64_t length, std::int64_t batch) const = 0;

  // A step.
  virtual Batch batch(const StepPlace& place, Part part) const = 0;
  // What the loss is computed from, on the model's device: a batch's tensors, or what is made of them there, such as
  // augmented pictures. Batches of the same shapes have inputs of the same shapes.
  virtual std::vector<torch::Tensor> inputs(std::vector<torch::Tensor> batch) { return batch; }
  // The sum of losses over the part (divided by the weights of all parts by the caller), a float tensor with gradients.
  virtual torch::Tensor loss(const std::vector<torch::Tensor>& inputs, bool bfloat16) = 0;
  // Whether what loss, regularizer and after_step do on the device depends on the shapes of the inputs alone, not on
  // their values: a GPU's step is then recorded once and replayed (runtime/graph.h).
  virtual bool replayable() const { return false; }
  // What a step adds to its gradient, but not to the loss that is reported. Undefined: nothing.
  virtual torch::Tensor regularizer() { return {}; }
  virtual void after_step() {}
  // The training loss in other words, such as {"bpc", loss / ln 2}.
  virtual std::vector<Figure> figures_of_loss(double /*loss*/) const { return {}; }

  // Lines for the user since the last call, such as pictures that could not be read.
  virtual std::vector<std::string> take_notes() { return {}; }

  // The score on the dev split at that step; nothing where there is none. In eval mode, without gradients.
  virtual std::optional<Score> score_dev(const StepPlace& place, bool bfloat16) = 0;
  // Of each layer with ContextPool, on some of the dev data.
  virtual std::vector<nn::WindowStatistics> windows(const StepPlace& /*place*/, bool /*bfloat16*/) { return {}; }

 protected:
  Task(const TaskKind& kind, const models::Family& family, OptionList model_options, OptionList options);
  void set_model_option(const std::string& name, OptionValue value);  // while the task is opened, from its data
  virtual void on_built() {}                                          // the model is there, on its device

 private:
  const TaskKind& kind_;
  const models::Family& family_;
  OptionList model_options_, options_;
  std::shared_ptr<torch::nn::Module> model_;
  torch::Device device_ = torch::kCPU;
};

}  // namespace contextpool::tasks
