// A run that was stopped, killed, or lost a checkpoint ends with the same bits as one that went through: weights,
// optimizer, average, state and log.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "contextpool/io/files.h"
#include "runs.h"

namespace contextpool::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSteps = 8;

fs::path whole_run(const Folder& folder) {
  Watcher watcher;
  TextTrainer trainer(small_run(folder), {folder.path("whole"), false, ""}, watcher);
  EXPECT_EQ(trainer.run(), train::Outcome::finished);
  return folder.path("whole");
}

Watcher resume(const Folder& folder, const fs::path& run) {
  Watcher watcher;
  TextTrainer trainer(small_run(folder), {run, true, ""}, watcher);
  EXPECT_EQ(trainer.run(), train::Outcome::finished);
  return watcher;
}

fs::path stopped_run(const Folder& folder, const std::string& name, std::int64_t after) {
  Watcher watcher;
  watcher.stop_after = after;
  TextTrainer trainer(small_run(folder), {folder.path(name), false, ""}, watcher);
  EXPECT_EQ(trainer.run(), train::Outcome::stopped);
  EXPECT_EQ(trainer.step(), after);
  return folder.path(name);
}

TEST(Resume, AStoppedRunGoesOnToTheSameBits) {
  const Folder folder;
  const auto whole = whole_run(folder);
  for (const std::int64_t after : {1, 3, 4, 5}) {  // within and between stages, at and between checkpoints
    const auto run = stopped_run(folder, "stopped" + std::to_string(after), after);
    const auto watcher = resume(folder, run);
    EXPECT_EQ(watcher.reports.size(), static_cast<std::size_t>(kSteps - after));
    EXPECT_TRUE(watcher.heard("resumed from"));
    expect_same_run(whole, run, kSteps);
  }
}

TEST(Resume, AFinishedRunStaysAsItIs) {
  const Folder folder;
  const auto whole = whole_run(folder);
  const auto contents = [&] {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(whole))
      if (entry.is_regular_file()) all[entry.path().string()] = read(entry.path());
    return all;
  };
  const auto before = contents();
  Watcher watcher;
  TextTrainer trainer(small_run(folder), {whole, true, "another config"}, watcher);
  EXPECT_EQ(trainer.run(), train::Outcome::finished);
  EXPECT_TRUE(watcher.reports.empty());
  EXPECT_TRUE(watcher.heard("finished already, at step 8; nothing was changed. A larger --steps"));
  EXPECT_EQ(contents(), before) << "config, log, events and checkpoints";
}

TEST(Resume, FallsBackWhereTheNewestIsBrokenAndSaysSo) {
  const Folder folder;
  const auto whole = whole_run(folder);
  const auto flip = [](const fs::path& file) {
    auto bytes = read(file);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    std::ofstream(file, std::ios::binary) << bytes;
  };
  const auto shorten = [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) - 1); };
  int n = 0;
  for (const auto* file :
       {"model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json", "MANIFEST.json"}) {
    for (const auto& damage :
         {std::function<void(const fs::path&)>(flip), std::function<void(const fs::path&)>(shorten),
          std::function<void(const fs::path&)>([](const fs::path& f) { fs::remove(f); })}) {
      SCOPED_TRACE(file);
      const auto run = stopped_run(folder, "broken" + std::to_string(n++), 5);
      damage(io::checkpoint_folder(run, 5) / file);
      const auto watcher = resume(folder, run);
      EXPECT_EQ(watcher.reports.size(), static_cast<std::size_t>(kSteps - 4)) << "from the checkpoint of step 4";
      EXPECT_TRUE(watcher.heard("skipped a broken checkpoint"));
      EXPECT_TRUE(watcher.heard("step-5"));
      expect_same_run(whole, run, kSteps);
    }
  }
}

TEST(Resume, ARunWhoseCheckpointsAllFailVerificationIsRefusedAndKept) {
  const Folder folder;
  const auto whole = whole_run(folder);
  const auto run = stopped_run(folder, "lost", 3);
  for (const auto step : io::checkpoint_steps(run)) fs::remove(io::checkpoint_folder(run, step) / "MANIFEST.json");
  const auto log = read(run / "log.jsonl");
  Watcher watcher;
  const auto message = message_of([&] { TextTrainer(small_run(folder), {run, true, ""}, watcher); });
  for (const auto* words : {"no checkpoint passes verification (step-3, step-2)", "--unverified", run.c_str()}) {
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
  EXPECT_EQ(read(run / "log.jsonl"), log);
  EXPECT_EQ(io::checkpoint_steps(run), (std::vector<std::int64_t>{2, 3}));

  TextTrainer trainer(small_run(folder), {run, true, "", /*unverified=*/true}, watcher);
  EXPECT_EQ(trainer.step(), 3);
  trainer.run();
  expect_same_run(whole, run, kSteps);
}

TEST(Resume, KilledBeforeItsFirstCheckpointARunStartsAnew) {
  const Folder folder;
  const auto whole = whole_run(folder);
  const auto run = stopped_run(folder, "early", 1);
  fs::remove_all(io::checkpoint_folder(run, 1));
  EXPECT_TRUE(resume(folder, run).heard("starting at step 0"));
  expect_same_run(whole, run, kSteps);
}

TEST(Resume, AnotherTextIsRefusedAndTheSameElsewhereIsNot) {
  const Folder folder;
  const auto whole = whole_run(folder);
  const auto run = stopped_run(folder, "run", 3);
  const auto before = read(folder.path("text"));
  auto changed = before;
  changed[100] = changed[100] == 'x' ? 'y' : 'x';
  const auto refused = [&](const std::string& bytes, const std::string& words) {
    folder.write("text", bytes);
    Watcher watcher;
    const auto message = message_of([&] { TextTrainer(small_run(folder), {run, true, ""}, watcher); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_NE(message.find(folder.path("text") + ": not the text of this run"), std::string::npos) << message;
  };
  refused(before + "more",
          "it has 4004 bytes, and " + (run / "checkpoints/step-3").string() + " was trained on 4000 (it has grown)");
  refused(before.substr(0, 3000), "was trained on 4000 (it has shrunk)");
  refused(changed, "(the checksum differs)");
  auto moved = small_run(folder);
  moved.data = folder.write("elsewhere", before);
  Watcher watcher;
  TextTrainer(moved, {run, true, ""}, watcher).run();
  expect_same_run(whole, run, kSteps);
}

TEST(Resume, ATextShortenedDuringTheRunDoesNotEndIt) {
  const Folder folder;
  const auto whole = whole_run(folder);
  Watcher watcher;
  TextTrainer trainer(small_run(folder), {folder.path("run"), false, ""}, watcher);
  fs::resize_file(folder.path("text"), 0);
  EXPECT_EQ(trainer.run(), train::Outcome::finished);
  expect_same_run(whole, folder.path("run"), kSteps);
}

TEST(Resume, ADamagedLogKeepsItsGoodLinesAndSaysWhatIsMissing) {
  const Folder folder;
  const auto run = stopped_run(folder, "run", 5);
  auto log = read(run / "log.jsonl");
  const auto second = log.find('\n') + 1;
  log[second] = 'x';  // the line of step 2
  std::ofstream(run / "log.jsonl", std::ios::binary) << log;
  const auto watcher = resume(folder, run);
  EXPECT_TRUE(watcher.heard("log.jsonl: has only 4 of the 5 steps so far; as it was, it is in"));
  EXPECT_EQ(read(run / "log.jsonl.damaged-1"), log);
  std::vector<std::int64_t> steps;
  for (const auto& line : log_of(run)) steps.push_back(line["step"]);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 3, 4, 5, 6, 7, 8}));

  const auto lost = stopped_run(folder, "lost", 5);
  fs::remove(lost / "log.jsonl");
  EXPECT_TRUE(resume(folder, lost).heard("has only 0 of the 5 steps so far (the log is missing)"));
}

TEST(Resume, WhatAKilledProcessLeftUnfinishedGoes) {
  const Folder folder;
  const auto run = stopped_run(folder, "run", 3);
  folder.write("run/.config.toml.writing-1", "half");
  folder.write("run/.log.jsonl.writing-1", "half");
  folder.write("run/.mine.writing-1", "not ours");
  resume(folder, run);
  EXPECT_FALSE(fs::exists(run / ".config.toml.writing-1"));
  EXPECT_FALSE(fs::exists(run / ".log.jsonl.writing-1"));
  EXPECT_TRUE(fs::exists(run / ".mine.writing-1"));
}

TEST(Resume, ATornLineOfTheLogIsDropped) {
  const Folder folder;
  const auto whole = whole_run(folder);
  const auto run = stopped_run(folder, "torn", 3);
  std::ofstream(run / "log.jsonl", std::ios::app) << R"({"step": 4, "loss)";
  resume(folder, run);
  expect_same_run(whole, run, kSteps);
}

// Trains in a process of its own, which ends as by kill -9 before the given operation on the disk (0: never). Returns
// how many operations there were.
int operations_until(int kill_before, const TextRun& options, const fs::path& run) {
  const auto child = ::fork();
  if (child == 0) {
    int count = 0;
    io::set_file_hook([&](io::FileOperation, const fs::path&) {
      if (++count == kill_before) ::kill(::getpid(), SIGKILL);
      return 0;
    });
    Watcher watcher;
    TextTrainer trainer(options, {run, false, ""}, watcher);
    trainer.run();
    std::ofstream(run.string() + ".count") << count;
    std::_Exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (kill_before > 0) {
    EXPECT_TRUE(WIFSIGNALED(status));
    return 0;
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return std::stoi(read(run.string() + ".count"));
}

TEST(Resume, AKillBeforeAnyOperationOnTheDiskCostsNothing) {
  if (!on_cpu()) GTEST_SKIP() << "a process that uses a GPU cannot be forked";
  at::set_num_threads(1);  // a process with more threads cannot be forked
  const Folder folder;
  auto options = small_run(folder);
  options.model.layers = 1;
  options.stages = {{16, 4, 1, 1e-2, 1}, {24, 3, 1, 5e-3, 1}};
  options.checkpoint_every = 1;
  options.keep = 1;
  options.eval_tokens = 0;
  const fs::path whole = folder.path("whole");
  const int operations = operations_until(0, options, whole);
  EXPECT_GT(operations, 40);
  for (int i = 1; i <= operations; ++i) {
    SCOPED_TRACE(i);
    const fs::path run = folder.path("killed" + std::to_string(i));
    operations_until(i, options, run);
    if (!fs::is_directory(run)) continue;  // killed before there was a run
    EXPECT_TRUE(fs::exists(run / "config.toml")) << "which the program resumes from";
    Watcher watcher;
    TextTrainer trainer(options, {run, true, ""}, watcher);
    EXPECT_EQ(trainer.run(), train::Outcome::finished);
    expect_same_run(whole, run, 2);
  }
}

}  // namespace
}  // namespace contextpool::testing
