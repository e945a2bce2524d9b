// contextpool eval: bits per character of a model on a split of a text.
#include "contextpool/eval/windows.h"

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/config.h"
#include "contextpool/eval/device.h"
#include "contextpool/eval/model_file.h"

namespace contextpool::cli {
namespace {

struct EvalFlags {
  ModelFlags model;
  std::string data, layout, split = "test";
  contextpool::eval::WindowOptions windows;
  bool json = false;
  std::int64_t trained_length = 0;  // of the run's longest rows; 0: not known
};

void add_flags(CLI::App& app, EvalFlags& f) {
  f.model.add_to(app);
  app.add_option("--data", f.data, "text file; else the one that the run was trained on");
  app.add_option("--layout", f.layout,
                 "of the file: bytes, letters, enwik8 or text8; else the run's, or as the model's symbols");
  app.add_option("--split", f.split, "train, dev or test");
  app.add_option("--window", f.windows.window, "tokens of a window; less where learned positions end before");
  app.add_option("--step", f.windows.step, "tokens from window to window, and scored in each");
  app.add_option("--batch", f.windows.batch, "windows at once");
  app.add_option("--tokens", f.windows.tokens, "of the split; 0: all");
  app.add_flag("--bfloat16", f.windows.bfloat16, "matrix products in bfloat16");
  app.add_flag("--json", f.json, "print a JSON object");
}

// What the run's config says: its text, where no other is named, and how long its rows were.
void ask_run(EvalFlags& f) {
  if (f.model.run.empty()) return;
  const auto config = read_config(f.model.run + "/config.toml").values;
  const auto words = [&](const char* key) { return config.contains(key) ? config.at(key) : Arguments{""}; };
  if (f.data.empty()) {
    f.data = words("data").front();
    if (f.layout.empty()) f.layout = words("layout").front();
  }
  for (const auto& word : words("length")) {
    std::int64_t length = 0;
    if (CLI::detail::lexical_cast(word, length)) f.trained_length = std::max(f.trained_length, length);
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
  ask_run(f);
  if (f.data.empty()) throw Wrong("--data FILE is needed: the text to score");
  const auto split = data::split_named(f.split);
  const auto device = contextpool::eval::device_named(f.model.device);
  auto model = contextpool::eval::load_model(f.model.file(), device);
  if (f.layout.empty()) f.layout = data::layout_of(model->options().vocabulary);
  const data::Text text(f.data, f.layout);
  if (app.count("--window") == 0 && model->options().positions == "learned") {
    f.windows.window = std::min(f.windows.window, model->options().length);
    f.windows.step = std::min(f.windows.step, f.windows.window);
  }
  if (f.trained_length > 0 && f.windows.window > f.trained_length) {
    std::cerr << "contextpool: windows of " << f.windows.window << " tokens, but the run trained on rows of at most "
              << f.trained_length << ": where its positions do not reach that far, use --window " << f.trained_length
              << "\n";
  }
  const auto start = std::chrono::steady_clock::now();
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const auto score =
      contextpool::eval::evaluate(model, text, split, f.windows, [&](std::int64_t done, std::int64_t all) {
        if (terminal)
          std::cerr << "\r\x1b[K" << done << "/" << all << " tokens" << (done == all ? "\n" : "") << std::flush;
      });
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  print(score, seconds, contextpool::eval::peak_memory(device), f);
  return 0;
}

}  // namespace contextpool::cli
