// contextpool eval: bits per character of a model on a split of a text.
#include "contextpool/eval/windows.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/config.h"
#include "cli/console.h"
#include "contextpool/eval/device.h"
#include "contextpool/eval/model_file.h"
#include "nn/names.h"

namespace contextpool::cli {
namespace {

constexpr std::int64_t kTokensAtOnce = 16384;  // of a batch of windows, unless --batch says

struct EvalFlags {
  ModelFlags model;
  std::string data, layout, split = "test", protocol = "trained";
  contextpool::eval::WindowOptions windows{.window = 0, .step = 0, .batch = 0};  // 0: as the protocol has it
  bool json = false;
};

void add_flags(CLI::App& app, EvalFlags& f) {
  f.model.add_to(app);
  app.add_option("--data", f.data, "text file; else the one that the run was trained on");
  app.add_option("--layout", f.layout,
                 "of the file: bytes, letters, enwik8 or text8; else the run's, or as the model's symbols");
  app.add_option("--split", f.split, "train, dev or test; all: the whole file");
  app.add_option(
      "--protocol", f.protocol,
      "windows and steps: trained (the length of the training rows, and half of it) or paper (32768 and 512)");
  const auto from_protocol = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->default_str("");
  };
  from_protocol("--window", f.windows.window, "tokens of a window; else the protocol's");
  from_protocol("--step", f.windows.step,
                "tokens from window to window, and scored in each; else half of --window, or the protocol's");
  from_protocol("--batch", f.windows.batch, "windows at once; else as many as have 16384 tokens together");
  app.add_option("--tokens", f.windows.tokens, "of the split; 0: all");
  app.add_flag("--bfloat16", f.windows.bfloat16, "matrix products in bfloat16");
  app.add_flag("--json", f.json, "print a JSON object");
}

void check_flags(const CLI::App& app, const EvalFlags& f) {
  nn::check_word("contextpool", "protocol", f.protocol, {"trained", "paper"});
  for (const auto& [name, value] : {std::pair{"--window", f.windows.window}, std::pair{"--step", f.windows.step},
                                    std::pair{"--batch", f.windows.batch}}) {
    if (app.count(name) > 0 && value < 1)
      throw Wrong(std::string(name) + " is " + std::to_string(value) + ", expected at least 1");
  }
  if (f.windows.tokens < 0)
    throw Wrong("--tokens is " + std::to_string(f.windows.tokens) + ", expected 0 (all) or more");
  if (f.windows.window > 0 && f.windows.step > f.windows.window) {
    throw Wrong("windows of " + std::to_string(f.windows.window) + " tokens that move by " +
                std::to_string(f.windows.step) + " would leave tokens out; --step may be at most --window");
  }
}

// The run's own text, where no other is named.
void ask_run(EvalFlags& f) {
  if (f.model.run.empty() || !f.data.empty()) return;
  const auto config = read_config(f.model.run + "/config.toml").values;
  const auto word = [&](const char* key) { return config.contains(key) ? config.at(key).front() : ""; };
  f.data = word("data");
  if (f.layout.empty()) f.layout = word("layout");
}

// Fills in what the flags leave to the protocol.
void choose_windows(EvalFlags& f, const contextpool::models::LanguageModelOptions& model, std::int64_t trained) {
  const contextpool::eval::WindowOptions paper;
  auto& w = f.windows;
  const bool given = w.window > 0;
  if (!given && f.protocol == "trained") {
    w.window = trained > 0 ? trained : model.length;
    if (trained == 0) {
      std::cerr << "contextpool: the file does not say how long its training rows were; windows of " << w.window
                << " tokens, the model's own length (--window sets another)\n";
    }
  }
  if (!given && f.protocol == "paper") {
    w.window = paper.window;
    if (w.step == 0) w.step = paper.step;
    if (model.positions == "learned" && model.length < w.window) {
      w.window = model.length;
      std::cerr << "contextpool: windows of " << w.window << " tokens: the model's learned positions end there\n";
    }
  }
  if (w.step == 0) w.step = std::max<std::int64_t>(1, w.window / 2);
  w.step = given ? w.step : std::min(w.step, w.window);
  if (w.batch == 0) w.batch = std::max<std::int64_t>(1, kTokensAtOnce / w.window);
  if (trained > 0 && w.window > trained) {
    std::cerr << "contextpool: windows of " << w.window << " tokens, but the model was trained on rows of " << trained
              << ": where its positions do not reach that far, use --window " << trained << "\n";
  }
}

void print(const contextpool::eval::Score& score, double seconds, std::int64_t memory, const EvalFlags& f) {
  const auto rate = static_cast<double>(score.tokens) / seconds;
  if (f.json) {
    std::cout << nlohmann::ordered_json{{"bpc", score.bits()},        {"loss", score.nats},
                                        {"tokens", score.tokens},     {"split", f.split},
                                        {"window", f.windows.window}, {"step", f.windows.step},
                                        {"tokens_per_second", rate},  {"memory", memory}}
              << '\n';
    return;
  }
  std::printf("%.4f bpc (%.4f nats) on %lld tokens of %s, windows of %lld moved by %lld; %.0f tokens/s\n", score.bits(),
              score.nats, static_cast<long long>(score.tokens), f.split.c_str(),
              static_cast<long long>(f.windows.window), static_cast<long long>(f.windows.step), rate);
}

}  // namespace

int eval(const Arguments& arguments) {
  EvalFlags f;
  CLI::App app("Scores a model on held-out text by overlapping windows.", "contextpool eval");
  add_flags(app, f);
  if (!parse(app, arguments)) return 0;
  const auto [split, device] = as_command([&] {
    check_flags(app, f);
    return std::pair{data::split_named(f.split), contextpool::eval::device_named(f.model.device)};
  });
  const bool other_text = !f.data.empty() && app.count("--split") == 0;
  ask_run(f);
  if (f.data.empty()) throw Wrong("--data FILE is needed: the text to score");
  const auto file = f.model.file();
  auto model = contextpool::eval::load_model(file, device);
  if (f.layout.empty()) f.layout = data::layout_of(model->options().vocabulary);
  const data::Text text(f.data, f.layout);
  if (other_text) {
    std::cerr << "contextpool: scoring the test split of " << f.data << ", its last " << text.size(split)
              << " bytes; --split all scores the whole file\n";
  }
  choose_windows(f, model->options(), contextpool::eval::trained_length(file));
  const auto start = std::chrono::steady_clock::now();
  contextpool::eval::Score score;
  {
    Progress progress("scored", "tokens");
    score = contextpool::eval::evaluate(model, text, split, f.windows, std::ref(progress));
  }
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  print(score, seconds, contextpool::eval::peak_memory(device), f);
  return 0;
}

}  // namespace contextpool::cli
