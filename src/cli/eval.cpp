// contextpool eval: the score of a trained model on held-out data, by the task of its family.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>

#include "cli/cli.h"
#include "cli/console.h"
#include "cli/data_of_run.h"
#include "cli/option_flags.h"
#include "contextpool/io/files.h"
#include "contextpool/models/model_file.h"
#include "contextpool/runtime/device.h"
#include "contextpool/tasks/registry.h"

namespace contextpool::cli {
namespace {

// The model that the arguments name, before their other flags are known; empty where they name none.
std::string named_file(const Arguments& arguments, ModelFlags& flags) {
  CLI::App app;
  flags.add_to(app);
  app.set_help_flag();
  app.allow_extras();
  try {
    app.parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& e) {
    throw UsageError(e.what());
  }
  if (flags.run.empty() == flags.checkpoint.empty()) return "";
  flags.check_which();
  if (!flags.run.empty() && !std::filesystem::exists(flags.run + "/config.toml"))
    throw UsageError(flags.run + ": there is no run in it (--run names the folder of a training run)");
  return flags.find().file.string();
}

// The kind of task: that of the model's family, or of an option with which no model is needed.
const tasks::TaskKind& kind_of(const std::string& file, const Arguments& arguments) {
  if (!file.empty()) return tasks::task_of(models::describe_model(file).family);
  for (const auto* kind : tasks::task_kinds()) {
    const auto option = kind->option_without_model();
    const auto flag = "--" + OptionFlags::dashed(option);
    const auto names_it = [&](const std::string& word) { return word == flag || word.starts_with(flag + "="); };
    if (!option.empty() && std::any_of(arguments.begin(), arguments.end(), names_it)) return *kind;
  }
  return *tasks::task_kinds().front();
}

}  // namespace

int eval(const Arguments& arguments) {
  ModelFlags flags;
  bool json = false;
  ModelFlags ahead;
  const auto file = named_file(arguments, ahead);
  const auto& kind = kind_of(file, arguments);

  CLI::App app("Scores a trained model on held-out data.", "contextpool eval");
  flags.add_to(app);
  const OptionFlags options(app, kind.eval_options(), "Data and score", OptionFlags::Defaults::shown);
  app.add_flag("--json", json, "print a JSON object");
  if (!parse(app, arguments)) return 0;

  tasks::EvalRequest request;
  request.given = options.all_given();
  request.options = with_data_of_run(options.over(kind.eval_options()), kind, flags.run, request.given);
  request.note = [](const std::string& line) { std::cerr << "contextpool: " << line << "\n"; };
  as_command([&] {
    kind.check_eval(request);
    request.device = runtime::device_named(flags.device);
  });
  const auto alone = kind.option_without_model();
  const bool without_model = !alone.empty() && options.given(alone);
  if (!without_model) request.file = flags.file();
  tasks::EvalResult result;
  {
    std::optional<Progress> progress;
    request.progress = [&](std::int64_t done, std::int64_t all) {
      if (!progress) progress.emplace("scored", kind.eval_unit());
      (*progress)(done, all);
    };
    result = kind.evaluate(request);
  }
  std::cout << (json ? result.json : result.line) << "\n" << std::flush;
  for (const auto& written : result.files) io::replace_file(written.path, written.text);
  return 0;
}

}  // namespace contextpool::cli
