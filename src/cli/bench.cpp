// contextpool bench step: what a training step of a model costs, beside the same model without its mixer.
// contextpool bench loader: how fast the batches of a training are made.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "cli/cli.h"
#include "cli/option_flags.h"
#include "contextpool/models/registry.h"
#include "contextpool/runtime/device.h"
#include "contextpool/train/measured.h"

namespace contextpool::cli {
namespace {

constexpr const char *kModel = "Model", *kData = "Data", *kRun = "Run";
constexpr int kWarmUp = 3, kTurnOnGpu = 5;  // steps
constexpr int kMostThreads = 1024, kMostLoaders = 256;
constexpr double kLongest = 3600;  // seconds of a measurement
constexpr double kTera = 1e12, kMilli = 1e-3, kMega = 1e6, kPercent = 100;

struct BenchFlags {
  std::string model = "cp-tiny", beside;
  std::int64_t steps = 20, length = 256, batch = 16, threads = 0;
  double peak = 0;
  bool profile = false;
  train::TrainOptions options;
};

void add_common_flags(CLI::App& app, BenchFlags& f) {
  app.option_defaults()->always_capture_default()->take_last();
  app.add_option("--model", f.model, "name; `contextpool models` lists them")->group(kModel);
  const auto run = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->group(kRun);
  };
  run("--length", f.length, "tokens of a row");
  run("--batch", f.batch, "rows of a step; of a translator, padded tokens");
}

void add_step_flags(CLI::App& app, BenchFlags& f) {
  const auto run = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->group(kRun);
  };
  run("--beside", f.beside, "model to compare with, or none; unless given, the same without its mixer");
  run("--steps", f.steps, "timed steps of each model");
  app.add_flag("--bfloat16", f.options.bfloat16, "matrix products in bfloat16")->group(kRun)->default_str("false");
  run("--accumulate", f.options.accumulate, "micro-batches a step");
  run("--optimizer", f.options.optimizer.kind, "adamw or sgd");
  run("--ema", f.options.ema, "decay of an average of the weights; 0: none");
  run("--device", f.options.device, "auto, cpu, cuda or cuda:N");
  app.add_flag("--cuda-graphs", f.options.cuda_graphs, "on a GPU, replay recorded steps, as train does")
      ->group(kRun)
      ->default_str("true");
  run("--threads", f.threads, "of the CPU; 0: as many as PyTorch chooses");
  run("--peak", f.peak, "TFLOP/s of which MFU is the share; 0: what the GPU's data sheet says, where it is known");
  app.add_flag("--profile", f.profile, "print the time by kind of work and by operator")
      ->group(kRun)
      ->default_str("false");
}

// The model that the arguments name: it says which flags there are.
std::string named_model(const Arguments& arguments) {
  BenchFlags f;
  CLI::App app;
  app.add_option("--model", f.model)->take_last();
  app.set_help_flag();
  app.allow_extras();
  try {
    app.parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& e) {
    throw UsageError(e.what());
  }
  return f.model;
}

// The flags of a model's own options and of its data.
struct ModelAndData {
  ModelAndData(CLI::App& app, const models::FoundModel& found, const tasks::TaskKind& task_kind)
      : kind(task_kind),
        model(app, free_options(found.family, kind), kModel, OptionFlags::Defaults::hidden,
              [&found](const std::string& option) { return found.family.flag(option); }),
        data(app, kind.train_options(), kData, OptionFlags::Defaults::hidden) {}

  static OptionList free_options(const models::Family& family, const tasks::TaskKind& kind) {
    const auto derived = kind.derived_options();
    OptionList free;
    for (const auto& option : family.defaults()) {
      if (std::find(derived.begin(), derived.end(), option.name) == derived.end()) free.add(option);
    }
    return free;
  }
  // Generated data, unless some are given.
  OptionList data_options() const {
    const auto defaults = kind.train_options();
    const bool given = defaults.has("data") && data.given("data");
    return data.over(given ? defaults : kind.generated_data(defaults));
  }
  OptionList model_options(const models::NamedModel& named) const {
    return kind.complete(model.over(named.options), data_options());
  }

  const tasks::TaskKind& kind;
  OptionFlags model, data;
};

// "transformer-6" for "cp-transformer-6": with ContextPool, and "dw-", with a depthwise convolution, models are named
// after those without.
std::optional<models::FoundModel> twin_of(const BenchFlags& f, const models::Family& family) {
  if (f.beside == "none") return std::nullopt;
  if (!f.beside.empty()) {
    auto named = as_command([&] { return models::find_model(f.beside); });
    if (&named.family != &family) {
      throw UsageError("--beside " + f.beside + " is a " + named.family.name() + ", and --model " + f.model + " a " +
                       family.name() + "; expected models of one family");
    }
    return named;
  }
  for (const std::string prefix : {"cp-", "dw-"}) {
    if (f.model.rfind(prefix, 0) != 0) continue;
    for (const auto& model : family.models()) {
      if (model.name == f.model.substr(prefix.size())) return models::FoundModel{family, model};
    }
  }
  return std::nullopt;
}

using Models = std::vector<std::unique_ptr<train::MeasuredModel>>;

void measure(Models& all, std::int64_t steps, bool cpu) {
  const auto turn = static_cast<int>(std::min<std::int64_t>(steps, cpu ? 1 : kTurnOnGpu));
  for (auto& model : all) model->warm_up(kWarmUp);
  for (auto& model : all) model->measure_memory();
  for (auto& model : all) model->record_steps();
  for (std::int64_t done = 0; done < steps; done += turn) {
    for (auto& model : all) model->take_turn(turn);
  }
}

std::string text_of(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// Markdown: a column for each model, and where there are two, what the first takes more than the second.
class Table {
 public:
  explicit Table(const Models& models) {
    std::string head = "| |", line = "|---|";
    for (const auto& model : models) {
      costs_.push_back(model->cost());
      head += " " + model->name() + " |";
      line += "---|";
    }
    if (costs_.size() == 2) head += " more |", line += "---|";
    std::cout << head << "\n" << line << "\n";
  }
  template <typename F>
  void row(const std::string& name, const char* format, F figure, bool compared = true) const {
    std::string text = "| " + name + " |";
    for (const auto& cost : costs_) text += " " + text_of(format, figure(cost)) + " |";
    if (costs_.size() == 2) {
      const auto more = kPercent * (figure(costs_[0]) / figure(costs_[1]) - 1);
      text += compared ? " " + text_of("%.1f %%", more) + " |" : " |";
    }
    std::cout << text << "\n";
  }
  bool has_device_time() const { return costs_.front().times.device_seconds.has_value(); }

 private:
  std::vector<train::MeasuredModel::Cost> costs_;
};

void print_costs(const Models& all, const std::string& unit, std::optional<double> peak) {
  using Cost = train::MeasuredModel::Cost;
  const Table table(all);
  table.row("ms a step", "%.2f", [](const Cost& c) { return c.times.seconds / kMilli; });
  table.row(unit + " a second", "%.0f", [](const Cost& c) { return c.units_per_second; });
  table.row(
      "TFLOP/s", "%.3g", [](const Cost& c) { return c.flops_per_second / kTera; }, false);
  if (peak) {
    table.row(
        "MFU, %", "%.1f", [&](const Cost& c) { return kPercent * c.flops_per_second / kTera / *peak; }, false);
  }
  table.row("MB of weights and optimizer", "%.1f", [](const Cost& c) { return double(c.state_memory) / kMega; });
  table.row("MB more in a step", "%.1f", [](const Cost& c) { return double(c.step_memory) / kMega; });
  if (table.has_device_time()) {
    table.row("host, ms a step", "%.2f", [](const Cost& c) { return c.times.host_seconds / kMilli; });
    table.row("GPU, ms a step", "%.2f", [](const Cost& c) { return *c.times.device_seconds / kMilli; });
  } else {
    table.row("of all cores, ms a step", "%.2f", [](const Cost& c) { return *c.times.processor_seconds / kMilli; });
    const auto cores = [](const Cost& c) { return *c.times.processor_seconds / c.times.seconds; };
    table.row("cores at work", "%.2f", cores, false);
  }
}

void print_profile(train::MeasuredModel& model, std::int64_t steps, bool cpu) {
  constexpr std::size_t kLongest = 15;
  const auto operators = model.profile(static_cast<int>(steps));
  double all = 0;
  std::map<std::string, double> kinds;
  for (const auto& o : operators) {
    all += o.seconds;
    kinds[runtime::kind_of_operator(o.name)] += o.seconds;
  }
  std::vector<std::pair<std::string, double>> sorted(kinds.begin(), kinds.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::printf("\n%s, %s, ms a step\n\n| kind of work | ms | share |\n|---|---|---|\n", model.name().c_str(),
              cpu ? "operators by their own time" : "kernels");
  for (const auto& [kind, seconds] : sorted) {
    std::printf("| %s | %.2f | %.1f %% |\n", kind.c_str(), seconds / kMilli, kPercent * seconds / all);
  }
  std::printf("\n| operator | ms | calls |\n|---|---|---|\n");
  for (std::size_t i = 0; i < std::min(kLongest, operators.size()); ++i) {
    std::printf("| %s | %.2f | %lld |\n", operators[i].name.c_str(), operators[i].seconds / kMilli,
                static_cast<long long>(operators[i].calls));
  }
  std::fflush(stdout);
}

void check_numbers(const BenchFlags& f) {
  for (const auto& [name, value] : {std::pair{"--steps", f.steps}, {"--length", f.length}, {"--batch", f.batch}}) {
    if (value < 1) throw UsageError(std::string(name) + " is " + std::to_string(value) + ", expected at least 1");
  }
  if (f.threads < 0 || f.threads > kMostThreads)
    throw UsageError("--threads is " + std::to_string(f.threads) + ", expected 0 to " + std::to_string(kMostThreads));
  if (!(f.peak >= 0)) throw UsageError("--peak is " + std::to_string(f.peak) + ", expected 0 (as known) or more");
}

int bench_step(const Arguments& arguments) {
  const auto found = as_command([&] { return models::find_model(named_model(arguments)); });
  const auto& kind = as_command([&]() -> const tasks::TaskKind& { return tasks::task_of(found.family); });
  BenchFlags f;
  CLI::App app(
      "Times training steps of a model and of the same model without its mixer, in turns. Data are generated "
      "unless --data is given. (--model NAME --help: the flags of another model.)",
      "contextpool bench step");
  add_common_flags(app, f);
  add_step_flags(app, f);
  const ModelAndData flags(app, found, kind);
  if (!parse(app, arguments)) return 0;
  check_numbers(f);
  f.options.stages = {{f.length, f.batch, f.steps}};
  const auto device = as_command([&] { return runtime::device_named(f.options.device); });
  if (f.threads > 0) at::set_num_threads(static_cast<int>(f.threads));

  Models all;
  const auto add = [&](const models::FoundModel& model) {
    all.push_back(as_command([&] {
      return std::make_unique<train::MeasuredModel>(model.model.name, model.family, flags.model_options(model.model),
                                                    kind, flags.data_options(), f.options);
    }));
  };
  add(found);
  if (const auto twin = twin_of(f, found.family)) add(*twin);
  measure(all, f.steps, device.is_cpu());

  const auto name = runtime::device_name(device);
  const auto known = runtime::peak_teraflops(name, f.options.bfloat16);
  std::cout << (device.is_cpu() ? "CPU, " + std::to_string(at::get_num_threads()) + " threads"
                                : device.str() + (name.empty() ? "" : " " + name))
            << ", " << (f.options.bfloat16 ? "bfloat16" : "float32") << ", rows of " << f.length << ", batch "
            << f.batch << (all.front()->replaying() ? ", CUDA graphs" : "") << ", medians of " << f.steps
            << " steps of each, in turns; " << version() << "\n\n";
  for (auto& model : all) {
    for (const auto& note : model->take_notes()) std::cerr << model->name() << ": " << note << "\n";
  }
  print_costs(all, kind.unit(), f.peak > 0 ? std::optional(f.peak) : known);
  ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);  // NOLINT: else the profiler talks on stderr
  for (auto& model : all) {
    if (f.profile) print_profile(*model, f.steps, device.is_cpu());
  }
  return 0;
}

int bench_loader(const Arguments& arguments) {
  const auto found = as_command([&] { return models::find_model(named_model(arguments)); });
  const auto& kind = as_command([&]() -> const tasks::TaskKind& { return tasks::task_of(found.family); });
  BenchFlags f;
  std::vector<int> threads = {1, 2};
  double seconds = 3;
  CLI::App app("Makes the batches of a training of a model, without training it: how many a second, by threads.",
               "contextpool bench loader");
  add_common_flags(app, f);
  app.add_option("--loaders", threads, "threads that make batches; one value, or several")->delimiter(',')->group(kRun);
  app.add_option("--seconds", seconds, "of each measurement")->group(kRun);
  const ModelAndData flags(app, found, kind);
  if (!parse(app, arguments)) return 0;
  check_numbers(f);
  for (const auto count : threads) {
    if (count < 1 || count > kMostLoaders)
      throw UsageError("--loaders is " + std::to_string(count) + ", expected 1 to " + std::to_string(kMostLoaders));
  }
  if (!(seconds > 0 && seconds <= kLongest))
    throw UsageError("--seconds is " + std::to_string(seconds) + ", expected more than 0, at most " +
                     std::to_string(static_cast<int>(kLongest)));
  f.options.stages = {{f.length, f.batch}};
  const auto task = as_command([&] {
    const auto data = flags.data_options();
    const auto model = flags.model_options(found.model);
    kind.check(model, data, f.length, f.batch, /*parts=*/1);
    auto opened = kind.open(found.family, model, data);
    opened->check_stage(f.length, f.batch);
    return opened;
  });
  std::cout << "| threads | " << kind.unit() << " a second | a second of processor time |\n|---|---|---|\n";
  for (const auto count : threads) {
    const auto speed = train::loading_speed(*task, f.options, count, seconds);
    std::printf("| %d | %.0f | %.0f |\n", count, speed.units_per_second, speed.units_per_processor_second);
    std::fflush(stdout);
  }
  for (const auto& note : task->take_notes()) std::cerr << note << "\n";
  return 0;
}

}  // namespace

int bench(const Arguments& arguments) {
  const auto word = arguments.empty() ? "" : arguments[0];
  const Arguments rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (word == "step") return bench_step(rest);
  if (word == "loader") return bench_loader(rest);
  if (word == "--help" || word == "-h") {
    std::cout << "contextpool bench step    what a training step of a model costs\n"
                 "contextpool bench loader  how fast the batches of a training are made\n";
    return 0;
  }
  throw UsageError("contextpool bench: expected step or loader" + (word.empty() ? "" : ", not \"" + word + "\""));
}

}  // namespace contextpool::cli
