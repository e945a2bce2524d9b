// contextpool train: flags, presets and config file into TrainOptions, then the loop.
#include <contextpool/models/registry.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/config.h"
#include "cli/console.h"
#include "contextpool/data/text.h"
#include "contextpool/eval/device.h"
#include "contextpool/train/memory.h"
#include "contextpool/train/trainer.h"

namespace contextpool::cli {
namespace {

// Written into every config: a config without it is that of a run of version 0.1.0, which had the paper's sizes.
constexpr const char* kSizeRange = "pool-size-range";

namespace fs = std::filesystem;
using contextpool::models::LanguageModelOptions;

constexpr std::int64_t kMostThreads = 1024;

struct TrainFlags {
  train::TrainOptions options;
  std::string run, config, preset, model = "cp-tiny";
  bool resume = false, unverified = false, print_config = false;
  std::vector<std::int64_t> length = {256}, batch = {16}, steps = {1000}, warmup = {0};
  std::vector<double> lr = {3e-4};
  std::int64_t print_every = 100;
  std::int64_t threads = 0;
  LanguageModelOptions model_values;  // of the flags below that were given
  std::map<std::string, CLI::Option*> model_flags;
};

// --context is the model's `length`; a stage's is --length. The vocabulary follows from the layout.
std::string flag_of(const std::string& option) {
  auto flag = option == "length" ? std::string("context") : option;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

void add_run_flags(CLI::App& app, TrainFlags& f) {
  // --help and the config show defaults; of a flag given twice the last counts.
  app.option_defaults()->always_capture_default()->take_last();
  const auto here = [&](CLI::Option* option) { option->group("Run")->configurable(false); };
  here(app.add_option("--run", f.run, "folder to write; must not exist unless --resume is given"));
  here(app.add_flag("--resume", f.resume, "go on with the run from its newest checkpoint that passes verification"));
  here(app.add_flag("--unverified", f.unverified, "with --resume: take the newest checkpoint that can be read"));
  here(app.add_option("--preset", f.preset, "a recipe of configs/: " + CLI::detail::join(preset_names(), ", ")));
  here(app.add_option("--config", f.config, "file of `flag = value` lines (TOML)"));
  here(app.add_flag("--print-config", f.print_config, "print the effective config and do nothing"));
}

void add_recipe_flags(CLI::App& app, TrainFlags& f) {
  auto& o = f.options;
  const auto list = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->delimiter(',')->group("Stages (one value, or one for each stage)");
  };
  list("--length", f.length, "tokens of a row");
  list("--batch", f.batch, "rows of a step");
  list("--steps", f.steps, "steps of the stage");
  list("--lr", f.lr, "learning rate");
  list("--warmup", f.warmup, "steps over which the learning rate rises");

  const auto recipe = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->group("Recipe");
  };
  recipe("--schedule", o.schedule, "constant, cosine, inverse_sqrt or staged");
  recipe("--final-lr", o.final_share, "where cosine ends, as a share of lr");
  recipe("--beta1", o.adamw.beta1, "AdamW");
  recipe("--beta2", o.adamw.beta2, "AdamW");
  recipe("--eps", o.adamw.eps, "AdamW");
  recipe("--weight-decay", o.adamw.weight_decay, "AdamW; of parameters with two or more dimensions");
  recipe("--clip", o.clip, "largest 2-norm of the gradient; 0: any");
  recipe("--accumulate", o.accumulate, "micro-batches a step");
  recipe("--ema", o.ema, "decay of an average of the weights, which eval then uses; 0: none");
  recipe("--seed", o.seed, "of initial weights, data order and dropout");
  app.add_flag("--bfloat16", o.bfloat16, "matrix products in bfloat16")->group("Recipe")->default_str("false");
}

void add_other_flags(CLI::App& app, TrainFlags& f) {
  auto& o = f.options;
  const auto other = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->group("Running");
  };
  other("--device", o.device, "auto, cpu, cuda or cuda:N");
  other("--threads", f.threads, "of the CPU; 0: as many as PyTorch chooses");
  other("--checkpoint-every", o.checkpoint_every, "steps; the dev text is scored before each checkpoint");
  other("--checkpoint-minutes", o.checkpoint_minutes, "a checkpoint too after so long without; 0: none by the clock");
  other("--keep", o.keep, "last checkpoints to keep, beside the best");
  other("--eval-tokens", o.eval_tokens, "of the dev text to score; 0: none");
  other("--eval-batch", o.eval_batch, "windows at once when scoring");
  other("--give-up", o.give_up, "stop after so many steps in a row without finite loss and gradient");
  other("--print-every", f.print_every, "steps between the lines that stay on screen");
}

void add_model_flags(CLI::App& app, TrainFlags& f) {
  app.add_option("--model", f.model, "name; `contextpool models` lists them")->group("Model and text");
  app.add_option("--data", f.options.data, "text file")->group("Model and text");
  app.add_option("--layout", f.options.layout, "of the file: bytes, letters, enwik8 or text8")->group("Model and text");
  app.option_defaults()->always_capture_default(false);  // the named model says
  contextpool::models::for_each_option(f.model_values, [&](const std::string& name, auto& value, const char* help) {
    if (name == "vocabulary") return;
    f.model_flags[name] =
        app.add_option("--" + flag_of(name), value, help)->group("Model options (else as the named model has them)");
  });
}

LanguageModelOptions model_of(const TrainFlags& f) {
  auto options = contextpool::models::find_language_model(f.model).options;
  contextpool::models::for_each_option(options, [&](const std::string& name, auto& value, const char*) {
    if (name == "vocabulary") return;
    if (f.model_flags.at(name)->count() > 0)
      value = f.model_flags.at(name)->template as<std::decay_t<decltype(value)>>();
  });
  options.vocabulary = data::vocabulary_of(f.options.layout);
  return options;
}

std::vector<train::Stage> stages_of(const TrainFlags& f) {
  const auto count = std::max({f.length.size(), f.batch.size(), f.steps.size(), f.lr.size(), f.warmup.size()});
  const auto pick = [count](const char* name, const auto& values, std::size_t i) {
    if (values.size() != 1 && values.size() != count) {
      throw Wrong(std::string("--") + name + " has " + std::to_string(values.size()) + " values for " +
                  std::to_string(count) + " stages; expected 1 or " + std::to_string(count));
    }
    return values.size() == 1 ? values[0] : values[i];
  };
  std::vector<train::Stage> stages;
  stages.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    stages.push_back({pick("length", f.length, i), pick("batch", f.batch, i), pick("steps", f.steps, i),
                      pick("lr", f.lr, i), pick("warmup", f.warmup, i)});
  }
  return stages;
}

// The words of a model option that a run left to its named model.
std::vector<std::string> words_of_model(const std::string& model, const std::string& option) {
  const auto options = contextpool::models::to_json(contextpool::models::find_language_model(model).options);
  const auto value = nlohmann::json::parse(options).at(option);
  return {value.is_string() ? value.get<std::string>() : value.dump()};
}

bool same_words(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const std::string& x, const std::string& y) {
    double p = 0, q = 0;
    return x == y || (CLI::detail::lexical_cast(x, p) && CLI::detail::lexical_cast(y, q) && p == q);
  });
}

// What a run is; changing it would make another run of it. The text is compared with the checkpoint's.
void check_same_run(const CLI::App& app, const ConfigFile& before, const TrainFlags& f) {
  const auto check = [&](const std::string& name, const std::vector<std::string>& by_default) {
    const auto found = before.values.find(name);
    const auto was = found == before.values.end() ? by_default : found->second;
    const auto now = config_words(app, name);
    if (now.empty() || same_words(now, was)) return;
    throw Wrong(before.name + ": the run has --" + name + " " + CLI::detail::join(was, ",") + ", not " +
                CLI::detail::join(now, ",") + "; a resumed run keeps it");
  };
  for (const auto* name : {"model", "layout", "seed", "ema"}) check(name, {});
  for (const auto& [name, option] : f.model_flags) check(flag_of(name), words_of_model(f.model, name));
}

// All that can be found wrong without the machine, the text or the run.
void check_flags(TrainFlags& f) {
  f.options.stages = stages_of(f);
  f.options.model = model_of(f);
  train::validate(f.options);
  TORCH_CHECK_VALUE(f.threads >= 0 && f.threads <= kMostThreads, "contextpool: threads is ", f.threads,
                    ", expected 0 (as many as PyTorch chooses) to ", kMostThreads);
  TORCH_CHECK_VALUE(f.print_every >= 0, "contextpool: print-every is ", f.print_every, ", expected 0 (never) or more");
  TORCH_CHECK_VALUE(f.resume || !f.unverified, "contextpool: --unverified is for --resume");
}

// And with the machine. A layer of the model is built, unless it is too large.
contextpool::models::Cost check_machine(const TrainFlags& f) {
  train::check_memory(f.options, contextpool::eval::device_named(f.options.device));
  return contextpool::models::cost(f.options.model, f.options.stages.front().length);
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

std::vector<ConfigFile> config_files(const TrainFlags& f) {
  std::vector<ConfigFile> files;
  if (f.resume) {
    if (f.run.empty()) throw Wrong("--resume needs the run's folder: --run DIR");
    if (!f.preset.empty() || !f.config.empty())
      throw Wrong("--resume goes on with the run's own config.toml; leave --preset and --config out");
    const auto file = fs::path(f.run) / "config.toml";
    if (!fs::exists(f.run)) throw Wrong(f.run + ": there is no such run to resume; without --resume one is started");
    if (!fs::exists(file)) throw Wrong(f.run + ": there is no run in it to resume (it has no config.toml)");
    files.push_back(read_config(file.string()));
    files.back().values.try_emplace(kSizeRange, std::vector<std::string>{"0"});  // a run of version 0.1.0
  }
  if (!f.preset.empty()) files.push_back(preset(f.preset));
  if (!f.config.empty()) files.push_back(read_config(f.config));
  return files;
}

}  // namespace

int train(const Arguments& arguments) {
  TrainFlags f;
  CLI::App app("Trains a language model on the bytes of a text.", "contextpool train");
  add_run_flags(app, f);
  add_recipe_flags(app, f);
  add_other_flags(app, f);
  add_model_flags(app, f);
  if (!parse(app, arguments)) return 0;
  const auto files = config_files(f);
  parse_with(app, files, arguments);
  if (!f.options.data.empty()) set_word(app, "data", fs::absolute(f.options.data).lexically_normal().string());
  as_command([&] { check_flags(f); });
  set_word(app, kSizeRange, CLI::detail::to_string(f.options.model.pool.size_range));
  const auto config = config_text(app);
  if (f.print_config) {
    std::cout << config;
    return 0;
  }
  if (f.options.data.empty()) throw Wrong("--data FILE is needed: the text to train on");
  if (f.run.empty()) throw Wrong("--run DIR is needed: the folder to write");
  if (f.resume) check_same_run(app, files.front(), f);
  const auto cost = as_command([&] { return check_machine(f); });
  set_threads(f.threads);

  Console console(f.print_every);
  catch_signals();
  train::Trainer trainer(f.options, {f.run, f.resume, config, f.unverified}, console);
  if (trainer.finished()) return 0;
  console.on_message(f.model + ", " + std::to_string(cost.parameters) + " parameters; writing to " + f.run);
  if (trainer.run() == train::Outcome::finished) return 0;
  console.on_message("stopped at step " + std::to_string(trainer.step()) + " and saved; --resume goes on");
  return kSignalled + caught_signal();
}

}  // namespace contextpool::cli
