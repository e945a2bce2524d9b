#include "contextpool/tasks/registry.h"

#include <algorithm>

#include "contextpool/tasks/classification.h"
#include "contextpool/tasks/language_modelling.h"
#include "contextpool/tasks/translation.h"

namespace contextpool::tasks {
namespace {

// A new task of this library: its line here.
std::vector<std::unique_ptr<TaskKind>> built_in() {
  std::vector<std::unique_ptr<TaskKind>> all;
  all.push_back(language_modelling());
  all.push_back(classification());
  all.push_back(translation());
  return all;
}

std::vector<std::unique_ptr<TaskKind>>& registered() {
  static auto all = built_in();
  return all;
}

}  // namespace

eval::Looking TaskKind::look(const LookRequest& request) const {
  TORCH_CHECK_VALUE(false, request.file.string(), ": there is no page for models of this kind");
}

std::vector<const TaskKind*> task_kinds() {
  std::vector<const TaskKind*> all;
  for (const auto& kind : registered()) all.push_back(kind.get());
  return all;
}

void register_task(std::unique_ptr<TaskKind> kind) { registered().push_back(std::move(kind)); }

const TaskKind& task_of(const models::Family& family) {
  for (const auto* kind : task_kinds()) {
    const auto names = kind->families();
    if (std::find(names.begin(), names.end(), family.name()) != names.end()) return *kind;
  }
  TORCH_CHECK_VALUE(false, "contextpool: no task trains or scores models of the family \"", family.name(), "\"");
}

}  // namespace contextpool::tasks
