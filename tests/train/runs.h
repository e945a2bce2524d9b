// Small training runs for tests.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../data/files.h"
#include "../device.h"
#include "contextpool/models/language_models.h"
#include "contextpool/tasks/language_modelling.h"
#include "contextpool/train/trainer.h"

namespace contextpool::testing {

class Watcher : public train::Observer {
 public:
  void on_step(const train::StepReport& report) override { reports.push_back(report); }
  void on_message(const std::string& line) override { messages.push_back(line); }
  bool wants_stop() override { return stop_after >= 0 && static_cast<std::int64_t>(reports.size()) >= stop_after; }
  bool heard(const std::string& words) const {
    return std::any_of(messages.begin(), messages.end(),
                       [&](const std::string& m) { return m.find(words) != std::string::npos; });
  }

  std::int64_t stop_after = -1;
  std::vector<train::StepReport> reports;
  std::vector<std::string> messages;
};

inline std::string some_text(std::size_t size) {
  std::string text;
  for (std::uint64_t i = 0, state = 1; text.size() < size; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    text += std::to_string(state >> 52) + (i % 7 == 0 ? "\n" : " and ");
  }
  return text.substr(0, size);
}

// A run of a language model: how it is trained, the model and the text.
struct TextRun : train::TrainOptions, tasks::LanguageModellingOptions {
  models::LanguageModelOptions model;
};

class TextTrainer : public train::Trainer {
 public:
  TextTrainer(const TextRun& run, const train::Start& start, train::Observer& observer)
      : Trainer(run, std::make_shared<tasks::LanguageModelling>(run.model, run), start, observer) {}
  models::LanguageModel model() { return dynamic_cast<tasks::LanguageModelling&>(task()).language_model(); }
};

// ContextPool, dropout, micro-batches, an average, two stages and a checkpoint every two steps: all that has state.
inline TextRun small_run(const Folder& folder) {
  TextRun o;
  o.model = models::find_language_model("cp-tiny").options;
  o.model.features = 16;
  o.model.feedforward = 32;
  o.model.pool.hidden = 8;
  o.model.dropout = 0.1;
  o.data = folder.path("text");
  if (!std::filesystem::exists(o.data)) folder.write("text", some_text(4000));
  o.stages = {{16, 4, 4, 1e-2, 2}, {24, 3, 4, 5e-3, 1}};
  o.schedule = "staged";
  o.accumulate = 2;
  o.ema = 0.9;
  o.seed = 3;
  o.device = device().str();
  o.behind = 0;  // a step is reported before the next is enqueued, on a GPU too
  o.checkpoint_every = 2;
  o.keep = 2;
  o.eval_tokens = 100;
  return o;
}

inline std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The log without what depends on the clock.
inline std::vector<nlohmann::json> log_of(const std::filesystem::path& run) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(run / "log.jsonl");
  for (std::string line; std::getline(file, line);) {
    lines.push_back(nlohmann::json::parse(line));
    EXPECT_EQ(lines.back().erase("time"), 1U);
  }
  return lines;
}

// Every bit that a run leaves: the last checkpoint's files and the log. On a GPU, where bits are not promised, nearly
// the same losses.
inline void expect_same_run(const std::filesystem::path& a, const std::filesystem::path& b, std::int64_t step) {
  if (!on_cpu()) {
    const auto one = log_of(a), other = log_of(b);
    ASSERT_EQ(one.size(), other.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(one[i]["step"], other[i]["step"]);
      EXPECT_NEAR(one[i]["loss"].get<double>(), other[i]["loss"].get<double>(), 1e-3) << "line " << i;
    }
    return;
  }
  for (const auto* file : {"model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json"}) {
    EXPECT_TRUE(read(io::checkpoint_folder(a, step) / file) == read(io::checkpoint_folder(b, step) / file)) << file;
  }
  EXPECT_EQ(log_of(a), log_of(b));
}

}  // namespace contextpool::testing
