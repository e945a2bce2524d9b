// The kinds of task by the family of models that they train: what `contextpool train` and `contextpool eval` ask to
// know the flags of a model's data and to open or score it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "contextpool/eval/looking.h"
#include "contextpool/tasks/task.h"

namespace contextpool::tasks {

struct EvalRequest {
  std::filesystem::path file;  // of the model
  torch::Device device = torch::kCPU;
  OptionList options;                                                 // of eval_options(), as given
  std::vector<std::string> given;                                     // those of them that the user named
  std::function<void(std::int64_t done, std::int64_t all)> progress;  // may be empty
  std::function<void(const std::string& line)> note;                  // one line for the user
};

struct EvalResult {
  struct File {
    std::string path, text;
  };
  std::string line;              // for a person
  std::string json;              // the same and more, as a JSON object
  std::vector<File> files = {};  // to be written, once the score is told
};

// What `contextpool inspect` asks for: a page about one input (eval/looking.h).
struct LookRequest {
  std::filesystem::path file;  // of the model
  torch::Device device = torch::kCPU;
  std::string image;      // a picture's file, or
  std::string text;       // a line of text; the other is empty
  OptionList options;     // of eval_options(): the validation data whose sizes are counted, where "data" is not empty
  std::int64_t most = 0;  // pictures of them to look at
  bool data_may_be_gone = false;  // the page is made without them, with a note, where they cannot be opened
  std::function<void(std::int64_t done, std::int64_t all)> progress;  // may be empty
  std::function<void(const std::string& line)> note;                  // one line for the user
};

class TaskKind {
 public:
  virtual ~TaskKind() = default;
  virtual std::vector<std::string> families() const = 0;  // of the models that it trains
  virtual std::string unit() const = 0;                   // of data: "tokens"
  virtual std::string summary() const = 0;                // what `train` does with it, one line
  virtual OptionList train_options() const = 0;           // data and how they are read, with defaults
  // Those of them that are paths: a run's config has them from the root, so that it resumes from any folder.
  virtual std::vector<std::string> path_options() const { return {"data"}; }
  // Options of the model that follow from the data, and so are no flags: "vocabulary".
  virtual std::vector<std::string> derived_options() const { return {}; }
  // Options that a resumed run must have as before.
  virtual std::vector<std::string> fixed_options() const { return {}; }
  // The model's options with what follows from the task's options alone.
  virtual OptionList complete(OptionList model_options, const OptionList& /*options*/) const { return model_options; }
  // Throws if a value or a stage cannot be, whatever the data: rows longer than the model's positions, more parts than
  // rows.
  virtual void check(const OptionList& model_options, const OptionList& options, std::int64_t length,
                     std::int64_t batch, std::int64_t parts) const = 0;
  // Bytes that the backward pass of `batch` rows needs at least: what cannot fit is refused before anything is built.
  virtual double least_activations(const OptionList& model_options, std::int64_t length, double batch,
                                   bool bfloat16) const = 0;
  // Reads and checks the data.
  virtual std::unique_ptr<Task> open(const models::Family& family, const OptionList& model_options,
                                     const OptionList& options) const = 0;
  virtual OptionList eval_options() const = 0;
  // The option of evaluation with which no model is needed; none by default.
  virtual std::string option_without_model() const { return ""; }
  virtual std::string eval_unit() const { return unit(); }  // what its progress counts
  // Throws as soon as the options alone are wrong.
  virtual void check_eval(const EvalRequest& /*request*/) const {}
  virtual EvalResult evaluate(const EvalRequest& request) const = 0;
  // What its models' windows are looked at on: "image", "text", or nothing where there is no page for them.
  virtual std::string looks_at() const { return ""; }
  // The windows of each ContextPool on an input of that kind. Throws where the model has none.
  virtual eval::Looking look(const LookRequest& request) const;
  // For measuring without any data: the options with generated ones. As they are, where there are none.
  virtual OptionList generated_data(OptionList options) const { return options; }
  // Floating-point operations of a forward pass for each unit, in rows of `length`; without the pooling sum.
  virtual double flops_per_unit(const models::Family& family, const OptionList& model_options,
                                std::int64_t length) const {
    return family.cost(model_options, length).flops;
  }
};

std::vector<const TaskKind*> task_kinds();
void register_task(std::unique_ptr<TaskKind> kind);     // as models::register_family
const TaskKind& task_of(const models::Family& family);  // throws if none trains it

}  // namespace contextpool::tasks
