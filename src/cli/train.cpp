// contextpool train: flags, presets and config file into options, then the loop. Which flags there are beside those of
// every run depends on the model: its own options, and those of the task that trains it.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <thread>

#include "cli/config.h"
#include "cli/console.h"
#include "cli/option_flags.h"
#include "contextpool/data/translation/utf8.h"
#include "contextpool/io/error.h"
#include "contextpool/models/registry.h"
#include "contextpool/runtime/device.h"
#include "contextpool/runtime/processes.h"
#include "contextpool/train/memory.h"
#include "contextpool/train/trainer.h"

namespace contextpool::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostThreads = 1024;
// Groups of flags, and in lower case the sections of a config file.
constexpr const char *kModel = "Model", *kData = "Data", *kOptimizer = "Optimizer", *kTrain = "Train";

struct RunFlags {
  std::string run, config, preset, model = "cp-tiny";
  bool resume = false, unverified = false, print_config = false;
};

void add_run_flags(CLI::App& app, RunFlags& f) {
  // --help and the config show defaults; of a flag given twice the last counts.
  app.option_defaults()->always_capture_default()->take_last();
  const auto here = [&](CLI::Option* option) { option->group("Run")->configurable(false); };
  here(app.add_option("--run", f.run, "folder to write; must not exist unless --resume is given"));
  here(app.add_flag("--resume", f.resume, "continue the run from its newest checkpoint that passes verification"));
  here(app.add_flag("--unverified", f.unverified, "with --resume: take the newest checkpoint that can be read"));
  here(app.add_option("--preset", f.preset, "a recipe of configs/: " + CLI::detail::join(preset_names(), ", ")));
  here(app.add_option("--config", f.config, "file of `flag = value` lines (TOML)"));
  here(app.add_flag("--print-config", f.print_config, "print the effective config and do nothing"));
  app.add_option("--model", f.model, "name; `contextpool models` lists them")->group(kModel);
}

// Options of the model that a file has another value of where it does not say, and so are written into every config.
std::vector<Option> unlike_in_files(const models::Family& family) {
  std::vector<Option> all;
  const auto defaults = family.defaults();
  for (const auto& option : family.read("{}", "")) {
    if (option.value != defaults.at(option.name)) all.push_back(option);
  }
  return all;
}

struct TrainFlags : RunFlags {
  TrainFlags(CLI::App& app, const models::FoundModel& found, const tasks::TaskKind& task_kind)
      : family(found.family),
        named(found.model),
        kind(task_kind),
        model_options(family_flags(app)),
        data_options(app, kind.train_options(), kData, OptionFlags::Defaults::shown) {
    add_recipe_flags(app);
    add_other_flags(app);
  }
  void add_recipe_flags(CLI::App& app);
  void add_other_flags(CLI::App& app);
  OptionFlags family_flags(CLI::App& app);

  const models::Family& family;
  const models::NamedModel& named;
  const tasks::TaskKind& kind;
  OptionFlags model_options, data_options;
  train::TrainOptions options;
  std::vector<std::int64_t> length = {256}, batch = {16}, steps = {1000}, warmup = {0};
  std::vector<double> lr = {3e-4}, epochs = {0}, warmup_epochs = {0};
  std::int64_t print_every = 100;
  std::int64_t threads = 0;
};

// Without those that follow from the data; defaults are the named model's.
OptionFlags TrainFlags::family_flags(CLI::App& app) {
  add_run_flags(app, *this);
  const auto derived = kind.derived_options();
  OptionList free;
  for (const auto& option : family.defaults()) {
    if (std::find(derived.begin(), derived.end(), option.name) == derived.end()) free.add(option);
  }
  return OptionFlags(app, free, kModel, OptionFlags::Defaults::hidden,
                     [this](const std::string& option) { return family.flag(option); });
}

void TrainFlags::add_recipe_flags(CLI::App& app) {
  const auto list = [&](const char* name, auto& value, const char* group, const std::string& help) {
    app.add_option(name, value, help + "; one value, or one for each stage")->delimiter(',')->group(group);
  };
  list("--length", length, kTrain, "tokens of a row");
  list("--batch", batch, kTrain, "rows of a step");
  list("--steps", steps, kTrain, "steps of the stage");
  list("--epochs", epochs, kTrain, "epochs of the stage, instead of --steps, where data have epochs");
  list("--lr", lr, kOptimizer, "learning rate");
  list("--warmup", warmup, kOptimizer, "steps over which the learning rate rises");
  list("--warmup-epochs", warmup_epochs, kOptimizer, "the same in epochs");

  auto& o = options;
  const auto recipe = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->group(kOptimizer);
  };
  recipe("--optimizer", o.optimizer.kind, "adamw or sgd");
  recipe("--schedule", o.schedule, "constant, cosine, inverse_sqrt or staged");
  recipe("--final-lr", o.final_share, "where cosine ends, as a share of lr");
  recipe("--beta1", o.optimizer.beta1, "AdamW");
  recipe("--beta2", o.optimizer.beta2, "AdamW");
  recipe("--eps", o.optimizer.eps, "AdamW");
  recipe("--momentum", o.optimizer.momentum, "SGD");
  app.add_flag("--nesterov", o.optimizer.nesterov,
               "SGD: Nesterov's form of momentum; --nesterov=false for the plain one")
      ->group(kOptimizer)
      ->default_str("true");
  recipe("--weight-decay", o.optimizer.weight_decay, "of matrices and convolutions; biases and norms have none");
  recipe("--clip", o.clip, "largest 2-norm of the gradient; 0: any");
  recipe("--accumulate", o.accumulate, "micro-batches a step, in each process");
  app.add_flag("--shard-optimizer", o.shard_optimizer,
               "of several processes, each keeps the optimizer's state of a share of the parameters")
      ->group(kOptimizer)
      ->default_str("false");
  recipe("--ema", o.ema, "decay of an average of the weights, which eval then uses; 0: none");
}

void TrainFlags::add_other_flags(CLI::App& app) {
  auto& o = options;
  const auto other = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->group(kTrain);
  };
  other("--seed", o.seed, "of initial weights, data order and dropout");
  app.add_flag("--bfloat16", o.bfloat16, "matrix products in bfloat16")->group(kTrain)->default_str("false");
  other("--device", o.device, "auto, cpu, cuda or cuda:N");
  app.add_flag("--cuda-graphs", o.cuda_graphs,
               "on a GPU, record a step whose shapes stay and replay it; --cuda-graphs=false launches kernel by kernel")
      ->group(kTrain)
      ->default_str("true");
  other("--threads", threads, "of the CPU; 0: as many as PyTorch chooses");
  other("--loaders", o.loaders, "threads that make the next batches; 0: each is made when it is needed");
  other("--checkpoint-every", o.checkpoint_every, "steps; the dev data are scored before each checkpoint");
  other("--checkpoint-minutes", o.checkpoint_minutes, "a checkpoint too after so long without; 0: none by the clock");
  other("--keep", o.keep, "last checkpoints to keep, beside the best");
  other("--give-up", o.give_up, "stop after so many steps in a row without finite loss and gradient");
  other("--print-every", print_every, "steps between the lines that stay on screen");
}

std::vector<train::Stage> stages_of(const TrainFlags& f) {
  const auto count = std::max({f.length.size(), f.batch.size(), f.steps.size(), f.lr.size(), f.warmup.size(),
                               f.epochs.size(), f.warmup_epochs.size()});
  const auto pick = [count](const char* name, const auto& values, std::size_t i) {
    if (values.size() != 1 && values.size() != count) {
      throw UsageError(std::string("--") + name + " has " + std::to_string(values.size()) + " values for " +
                       std::to_string(count) + " stages; expected 1 or " + std::to_string(count));
    }
    return values.size() == 1 ? values[0] : values[i];
  };
  std::vector<train::Stage> stages;
  stages.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    stages.push_back({pick("length", f.length, i), pick("batch", f.batch, i), pick("steps", f.steps, i),
                      pick("lr", f.lr, i), pick("warmup", f.warmup, i), pick("epochs", f.epochs, i),
                      pick("warmup-epochs", f.warmup_epochs, i)});
  }
  return stages;
}

bool same_words(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const std::string& x, const std::string& y) {
    double p = 0, q = 0;
    return x == y || (CLI::detail::lexical_cast(x, p) && CLI::detail::lexical_cast(y, q) && p == q);
  });
}

// What a run is; changing it would make another run of it. The data are compared with the checkpoint's.
void check_same_run(const CLI::App& app, const ConfigFile& before, const TrainFlags& f) {
  const auto check = [&](const std::string& name, const std::vector<std::string>& by_default) {
    const auto found = before.values.find(name);
    const auto was = found == before.values.end() ? by_default : found->second;
    const auto now = config_words(app, name);
    if (now.empty() || same_words(now, was)) return;
    throw UsageError(before.name + ": the run has --" + name + " " + CLI::detail::join(was, ",") + ", not " +
                     CLI::detail::join(now, ",") + "; a resumed run keeps it");
  };
  for (const auto* name : {"model", "seed", "ema"}) check(name, {});
  check("optimizer", {"adamw"});  // which a run of version 0.1.0 had without saying so
  for (const auto& name : f.kind.fixed_options()) check(OptionFlags::dashed(name), {});
  for (const auto& [name, option] : f.model_options.handles()) {
    check(f.family.flag(name), {to_word(f.named.options.at(name))});
  }
}

struct Chosen {
  OptionList model, data;
};

// What can be found wrong without the machine, the data or the run.
Chosen check_flags(TrainFlags& f) {
  f.options.stages = stages_of(f);
  train::validate(f.options);
  Chosen chosen{f.model_options.over(f.named.options), f.data_options.over(f.kind.train_options())};
  // A resumed run has its checkpoint's; the file may be gone.
  if (f.resume && chosen.data.has("weights")) chosen.data.set("weights", std::string());
  chosen.model = f.kind.complete(chosen.model, chosen.data);
  for (const auto& stage : f.options.stages) {
    f.kind.check(chosen.model, chosen.data, stage.length, stage.batch, train::parts(f.options));
  }
  TORCH_CHECK_VALUE(f.threads >= 0 && f.threads <= kMostThreads, "contextpool: threads is ", f.threads,
                    ", expected 0 (as many as PyTorch chooses) to ", kMostThreads);
  TORCH_CHECK_VALUE(f.print_every >= 0, "contextpool: print-every is ", f.print_every, ", expected 0 (never) or more");
  TORCH_CHECK_VALUE(f.resume || !f.unverified, "contextpool: --unverified is for --resume");
  return chosen;
}

void set_threads(std::int64_t threads) {
  if (threads == 0) return;
  const std::int64_t cores = std::thread::hardware_concurrency();
  if (cores > 0 && threads > cores) {
    std::cerr << "contextpool: --threads " << threads << ", but this machine has " << cores
              << " cores: more threads than cores are slower\n";
  }
  at::set_num_threads(static_cast<int>(threads));
}

std::vector<ConfigFile> config_files(const RunFlags& f) {
  std::vector<ConfigFile> files;
  if (f.resume) {
    if (f.run.empty()) throw UsageError("--resume needs the run's folder: --run DIR");
    if (!f.preset.empty() || !f.config.empty())
      throw UsageError("--resume continues with the run's own config.toml; leave --preset and --config out");
    const auto file = fs::path(f.run) / "config.toml";
    if (!fs::exists(f.run))
      throw UsageError(f.run + ": there is no such run to resume; without --resume one is started");
    if (!fs::exists(file)) throw UsageError(f.run + ": there is no run in it to resume (it has no config.toml)");
    files.push_back(read_config(file.string()));
  }
  if (!f.preset.empty()) files.push_back(preset(f.preset));
  if (!f.config.empty()) files.push_back(read_config(f.config));
  return files;
}

// The model that arguments and files name, the last of them first: it says which flags there are.
std::string model_name(const RunFlags& f, bool given, const std::vector<ConfigFile>& files) {
  auto name = f.model;
  for (const auto& file : files) {
    const auto found = file.values.find("model");
    if (!given && found != file.values.end() && !found->second.empty()) name = found->second.front();
  }
  return name;
}

// The flags that every training has, of arguments that have others too.
RunFlags look_ahead(const Arguments& arguments, bool& model_given) {
  RunFlags f;
  CLI::App app;
  add_run_flags(app, f);
  app.set_help_flag();
  app.allow_extras();
  try {
    app.parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& e) {
    throw UsageError(e.what());
  }
  model_given = app.count("--model") > 0;
  return f;
}

// A job that torchrun restarts resumes the run that it began, with the same command.
void resume_after_restart(RunFlags& f, const runtime::Launch& launch, runtime::Processes& processes) {
  if (launch.restarts == 0 || f.resume || f.run.empty() || !fs::exists(fs::path(f.run) / "config.toml")) return;
  if (processes.noted(train::kRunNote) != fs::absolute(f.run).lexically_normal().string()) return;
  f.resume = true;
  f.preset = f.config = "";  // which are in the run's own config
}

// In a process that torchrun started: all of its kind, and the flags as they are for this one.
std::shared_ptr<runtime::Processes> join_job(RunFlags& ahead, const std::optional<runtime::Launch>& launch) {
  if (!launch || ahead.print_config) return nullptr;
  const auto processes = std::make_shared<runtime::Processes>(*launch);
  resume_after_restart(ahead, *launch, *processes);
  return processes;
}

}  // namespace

int train(const Arguments& arguments) {
  bool model_given = false;
  auto ahead = look_ahead(arguments, model_given);
  const auto launch = as_command([] { return runtime::launch_from_environment(); });
  const auto processes = join_job(ahead, launch);
  auto files = config_files(ahead);
  const auto found = as_command([&] { return models::find_model(model_name(ahead, model_given, files)); });
  const auto& kind = as_command([&]() -> const tasks::TaskKind& { return tasks::task_of(found.family); });
  const auto unlike = unlike_in_files(found.family);
  if (ahead.resume) {  // a config that does not say is that of version 0.1.0
    for (const auto& option : unlike) {
      files.front().values.try_emplace(found.family.flag(option.name), std::vector<std::string>{to_word(option.value)});
    }
  }

  CLI::App app(kind.summary() + " (--model NAME --help: the flags of another model.)", "contextpool train");
  TrainFlags f(app, found, kind);
  if (!parse(app, arguments)) return 0;
  parse_with(app, files, arguments);
  f.resume = ahead.resume;
  if (launch) f.options.processes = launch->size;
  for (const auto& name : kind.path_options()) {
    if (!kind.train_options().has(name) || !f.data_options.given(name)) continue;
    const auto path = f.data_options.over(kind.train_options()).get<std::string>(name);
    if (path.empty() || !fs::exists(path)) continue;  // a word for data that are generated, or an error later
    const auto whole = fs::absolute(path).lexically_normal().string();
    if (!data::is_valid_utf8(whole))
      throw UsageError(
          "--" + OptionFlags::dashed(name) + " " + io::in_quotes(whole) +
          ": the name is not UTF-8, and the run's config.toml could not hold it; rename it, or name a link to it");
    set_word(app, OptionFlags::dashed(name), whole);
  }
  const auto chosen = as_command([&] { return check_flags(f); });
  for (const auto& option : unlike) {
    set_word(app, found.family.flag(option.name), to_word(chosen.model.at(option.name)));
  }
  const auto config = config_text(app);
  if (f.print_config) {
    std::cout << config;
    return 0;
  }
  if (chosen.data.has("data") && chosen.data.get<std::string>("data").empty())
    throw UsageError("--data FILE is needed: what to train on");
  if (f.run.empty()) throw UsageError("--run DIR is needed: the folder to write");
  if (f.resume) check_same_run(app, files.front(), f);
  if (launch) f.options.device = as_command([&] { return runtime::device_of(*launch, f.options.device); });
  const auto device = as_command([&] { return runtime::device_named(f.options.device); });
  as_command([&] { train::check_memory(f.options, kind, found.family, chosen.model, device); });
  const auto length = f.options.stages.front().length;
  as_command([&] { found.family.cost(chosen.model, length); });  // an error if it cannot be built
  set_threads(f.threads);

  Console console(f.print_every, launch ? launch->rank : 0);
  // torchrun passes signals on, and kills who is slow to end.
  catch_signals(launch ? SecondSignal::ignored : SecondSignal::ends);
  const std::shared_ptr<tasks::Task> task = kind.open(found.family, chosen.model, chosen.data);
  train::Trainer trainer(f.options, task, {f.run, f.resume, config, f.unverified, processes}, console);
  if (trainer.finished()) return 0;
  const auto parameters = found.family.cost(task->model_options(), length).parameters;
  const bool first = !processes || processes->first();
  const auto several = processes ? ", " + std::to_string(processes->size()) + " processes" : "";
  if (first) {
    console.on_message(f.model + ", " + std::to_string(parameters) + " parameters" + several + "; writing to " + f.run);
  }
  if (trainer.run() == train::Outcome::finished) return 0;
  if (first) console.on_message("stopped at step " + std::to_string(trainer.step()) + " and saved; --resume continues");
  return kSignalled + (caught_signal() != 0 ? caught_signal() : SIGTERM);  // which another process got
}

}  // namespace contextpool::cli
