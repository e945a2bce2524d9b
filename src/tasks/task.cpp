#include "contextpool/tasks/task.h"

#include "contextpool/tasks/registry.h"

namespace contextpool::tasks {

Task::Task(const TaskKind& kind, const models::Family& family, OptionList model_options, OptionList options)
    : kind_(kind), family_(family), model_options_(std::move(model_options)), options_(std::move(options)) {}

void Task::set_model_option(const std::string& name, OptionValue value) { model_options_.set(name, std::move(value)); }

void Task::build(torch::Device device) {
  model_ = family_.build(model_options_);
  device_ = device;
  model_->to(device);
  on_built();
}

}  // namespace contextpool::tasks
