// train::Trainer: it learns, whatever the micro-batches and whatever goes wrong on the disk or in a step; a run folder
// is never taken for another's.
#include "contextpool/train/trainer.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "contextpool/data/batch.h"
#include "contextpool/eval/windows.h"
#include "contextpool/io/files.h"
#include "contextpool/models/model_file.h"
#include "contextpool/models/registry.h"
#include "contextpool/train/memory.h"
#include "runs.h"

namespace contextpool::testing {
namespace {

namespace fs = std::filesystem;

std::vector<torch::Tensor> weights(TextTrainer& trainer) {
  std::vector<torch::Tensor> all;
  for (const auto& p : trainer.model()->parameters()) all.push_back(p.detach().clone());
  return all;
}

double dev_loss(const train::StepReport& report) { return report.dev->figures.front().second; }

bool same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) return false;
  }
  return a.size() == b.size();
}

TextRun plain_run(const Folder& folder, std::int64_t steps) {
  auto o = small_run(folder);
  o.model.dropout = 0;
  o.accumulate = 1;
  o.ema = 0;
  o.stages = {{16, 4, steps, 1e-2, 2}};
  o.schedule = "constant";
  o.checkpoint_every = 1000;
  return o;
}

// With steps that are launched anew each time: a hook is not called in a replay.
TextRun with_hooks(TextRun o) {
  o.cuda_graphs = false;
  return o;
}

// One of two words by the toss of a coin: 1 bit in 8 characters. Frequencies alone give 2.25 bits a character, pairs of
// neighbours 0.78; only a model that sees the whole word so far comes near 1/8.
std::string coin_text(std::size_t size) {
  std::string text;
  for (std::uint64_t state = 7; text.size() < size;) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    text += (state >> 63) != 0 ? "abcabcd;" : "bcabacd;";
  }
  return text;
}

class Learns : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(Learns, WhatABrokenModelCouldNot) {
  if (std::get<1>(GetParam()) && on_cpu()) GTEST_SKIP() << "presets use bfloat16 on GPUs, and a CPU is slow at it";
  const Folder folder;
  auto o = plain_run(folder, 150);
  o.model = models::find_language_model(std::get<0>(GetParam())).options;
  o.bfloat16 = std::get<1>(GetParam());
  o.data = folder.write("coin", coin_text(20'000));
  o.stages = {{64, 8, 150, 5e-3, 20}};
  o.schedule = "cosine";
  o.eval_tokens = 1000;
  Watcher watcher;
  TextTrainer trainer(o, {folder.path("run"), false, ""}, watcher);
  trainer.run();
  const data::Text text(o.data, "bytes");
  auto model = trainer.model();
  const auto score = eval::evaluate(model, text, data::Split::test, {.window = 64, .step = 32});
  EXPECT_LT(score.bits(), 0.2) << "1/8 is the entropy of the text";
  EXPECT_GT(score.bits(), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Models, Learns,
                         ::testing::Combine(::testing::Values("tiny", "dw-tiny", "cp-tiny", "cp-longformer-tiny",
                                                              "cp-adaptive-span-tiny"),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::erase(name, '-');
                           return name + (std::get<1>(info.param) ? "_bfloat16" : "_float32");
                         });

TEST(Trainer, SpansAreTrainedWithinTheirRangeAndTheirLossIsNotReported) {
  const Folder folder;
  auto o = plain_run(folder, 12);
  o.model.attention = "adaptive_span";
  o.model.span_limit = 100;
  o.model.span_loss = 1;  // 100 for spans of 1: nothing else counts
  o.stages = {{64, 4, 12, 2e-2, 1}};
  Watcher watcher;
  TextTrainer trainer(o, {folder.path("run"), false, ""}, watcher);
  const auto spans = [&] {
    std::vector<torch::Tensor> all;
    for (const auto& block : trainer.model()->blocks()) all.push_back(block->attention()->span.detach());
    return torch::cat(all);
  };
  for (const auto& block : trainer.model()->blocks()) {
    const torch::NoGradGuard no_grad;
    block->attention()->span.copy_(torch::tensor({1.0, 0.05}));
  }
  trainer.run();
  EXPECT_NEAR(watcher.reports[0].loss, std::log(256), 0.1);
  const auto after = spans().view({-1, 2});
  EXPECT_TRUE((after.select(1, 0) < 0.95).all().item<bool>()) << "1 is not a trap";
  EXPECT_TRUE((after.select(1, 1) == 0).all().item<bool>()) << "not below 0";
}

TEST(Trainer, MicroBatchesGiveTheGradientOfTheBatch) {
  const Folder folder;
  std::vector<std::vector<torch::Tensor>> results;
  for (const std::int64_t parts : {1, 3}) {
    auto o = plain_run(folder, 3);
    o.accumulate = parts;
    Watcher watcher;
    TextTrainer trainer(o, {folder.path("run" + std::to_string(parts)), false, ""}, watcher);
    trainer.run();
    results.push_back(weights(trainer));
  }
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(torch::allclose(results[0][i], results[1][i], 1e-3, 1e-4)) << i;
  }
}

// -log softmax(logits)[next symbol], averaged over the batch that (seed, step) draws.
TEST(Trainer, TheLossOfTheFirstStepIsThatOfTheFormula) {
  const Folder folder;
  const auto o = plain_run(folder, 1);
  Watcher watcher;
  TextTrainer trainer(o, {folder.path("run"), false, ""}, watcher);
  const auto formula = [&] {
    const torch::NoGradGuard no_grad;
    for (auto& p : trainer.model()->parameters()) p.mul_(3);  // so that symbols are not predicted alike
    const data::Text text(o.data, o.layout);
    const auto batch =
        data::make_batch(text, data::Split::train, o.stages[0].length, o.seed, 0, {0, o.stages[0].batch});
    const auto logits = trainer.model()->forward(there(batch.input)).to(torch::kCPU, torch::kFloat64);
    return -(logits - logits.logsumexp(-1, true)).gather(-1, batch.target.unsqueeze(-1)).mean().item<double>();
  };
  const double expected = formula();
  trainer.run();
  EXPECT_NEAR(watcher.reports[0].loss, expected, 1e-5);
  EXPECT_GT(std::abs(watcher.reports[0].loss - std::log(256)), 0.1) << "not what any untrained model has";
}

TEST(Trainer, ClippingBoundsTheUpdateButNotTheReportedNorm) {
  const Folder folder;
  auto o = plain_run(folder, 1);
  o.clip = 1e-12;  // with AdamW's eps, a gradient that small moves nothing
  o.optimizer.weight_decay = 0;
  Watcher watcher;
  TextTrainer trainer(o, {folder.path("run"), false, ""}, watcher);
  const auto before = weights(trainer);
  trainer.run();
  const auto after = weights(trainer);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(torch::allclose(before[i], after[i], 0, 1e-5));
  EXPECT_GT(watcher.reports[0].gradient_norm, 1e-3);
}

TEST(Trainer, BFloat16TrainsToo) {
  const Folder folder;
  auto o = plain_run(folder, 3);
  o.bfloat16 = true;
  Watcher watcher;
  TextTrainer trainer(o, {folder.path("run"), false, ""}, watcher);
  trainer.run();
  EXPECT_LT(watcher.reports.back().loss, watcher.reports.front().loss);
  for (const auto& p : trainer.model()->parameters()) EXPECT_EQ(p.scalar_type(), torch::kFloat);
}

// Makes the gradient of the first parameter NaN in the given steps.
void spoil(TextTrainer& trainer, std::int64_t from, std::int64_t to) {
  auto p = trainer.model()->parameters().front();
  p.register_hook([&trainer, from, to](const torch::Tensor& g) {
    return trainer.step() >= from && trainer.step() < to ? g * std::numeric_limits<double>::quiet_NaN() : g;
  });
}

TEST(Trainer, AStepThatIsNotFiniteIsSkippedAndCounted) {
  const Folder folder;
  Watcher watcher;
  TextTrainer trainer(with_hooks(plain_run(folder, 6)), {folder.path("run"), false, ""}, watcher);
  spoil(trainer, 2, 4);
  trainer.run();
  for (const auto& w : weights(trainer)) EXPECT_TRUE(w.isfinite().all().item<bool>());
  const auto log = log_of(folder.path("run"));
  ASSERT_EQ(log.size(), 6U);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(log[i].contains("skipped"), i == 2 || i == 3) << i;
  const auto state = nlohmann::json::parse(read(io::checkpoint_folder(folder.path("run"), 6) / "state.json"));
  EXPECT_EQ(state["skipped"], 2);
  EXPECT_EQ(state["skipped_in_a_row"], 0);
}

TEST(Trainer, GivesUpAfterManySkipsInARowWithTheWeightsBeforeThem) {
  const Folder folder;
  auto good = plain_run(folder, 2);
  Watcher watcher;
  TextTrainer reference(good, {folder.path("good"), false, ""}, watcher);
  reference.run();

  auto o = with_hooks(plain_run(folder, 20));
  o.give_up = 3;
  TextTrainer trainer(o, {folder.path("run"), false, ""}, watcher);
  spoil(trainer, 2, 20);
  const auto message = message_of([&] { trainer.run(); });
  EXPECT_NE(message.find("3 steps in a row"), std::string::npos) << message;
  EXPECT_EQ(trainer.step(), 5);
  if (!on_cpu()) return;  // two runs have the same bits there only
  EXPECT_TRUE(same(weights(trainer), weights(reference)));
  EXPECT_EQ(read(io::checkpoint_folder(folder.path("run"), 5) / "model.safetensors"),
            read(io::checkpoint_folder(folder.path("good"), 2) / "model.safetensors"));
}

TEST(Trainer, AFullDiskDoesNotStopTrainingAndIsTriedAgain) {
  const Folder folder;
  auto o = small_run(folder);
  Watcher undisturbed;
  TextTrainer(o, {folder.path("whole"), false, ""}, undisturbed).run();
  // Full from the 2nd step on, room again after the 5th: the checkpoint of step 4 is lost, that of step 6 is not.
  Watcher watcher;
  TextTrainer trainer(o, {folder.path("run"), false, ""}, watcher);
  io::set_file_hook(
      [&](io::FileOperation, const fs::path&) { return trainer.step() >= 3 && trainer.step() < 6 ? ENOSPC : 0; });
  const auto outcome = trainer.run();
  io::set_file_hook({});
  EXPECT_EQ(outcome, train::Outcome::finished);
  EXPECT_TRUE(watcher.heard("the checkpoint of step 4 was not written, training continues"));
  EXPECT_TRUE(watcher.heard("the log was not written"));
  EXPECT_EQ(io::checkpoint_steps(folder.path("run")), (std::vector<std::int64_t>{6, 8}));
  expect_same_run(folder.path("whole"), folder.path("run"), 8);  // the log too: late lines were not lost
}

TEST(Trainer, AFullDiskAtTheEndIsAnError) {
  const Folder folder;
  Watcher watcher;
  TextTrainer trainer(plain_run(folder, 1), {folder.path("run"), false, ""}, watcher);
  io::set_file_hook([](io::FileOperation, const fs::path&) { return ENOSPC; });
  const auto message = message_of([&] { trainer.run(); });
  io::set_file_hook({});
  EXPECT_NE(message.find("its checkpoint could not be written"), std::string::npos) << message;
  EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
  EXPECT_FALSE(watcher.heard("the checkpoint of step 1 was not written, training continues")) << "it does not";
}

TEST(Trainer, ARunFolderIsNotReused) {
  const Folder folder;
  const auto o = plain_run(folder, 1);
  fs::create_directory(folder.path("run"));
  folder.write("run/precious", "text");
  Watcher watcher;
  const auto message = message_of([&] { TextTrainer(o, {folder.path("run"), false, ""}, watcher); });
  EXPECT_NE(message.find(folder.path("run")), std::string::npos) << message;
  EXPECT_NE(message.find("not a run: choose another name"), std::string::npos) << message;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path("run")), {}), 1);
  folder.write("run/config.toml", "");
  const auto of_run = message_of([&] { TextTrainer(o, {folder.path("run"), false, ""}, watcher); });
  EXPECT_NE(of_run.find("continue it with --resume, or choose another name"), std::string::npos) << of_run;
}

TEST(Trainer, ACheckpointOfAnotherModelIsRefusedAndNothingWritten) {
  const Folder folder;
  auto o = plain_run(folder, 1);
  Watcher watcher;
  TextTrainer(o, {folder.path("run"), false, ""}, watcher).run();
  const auto before = read(folder.path("run/log.jsonl"));
  for (const bool other_shape : {true, false}) {
    auto other = o;
    (other_shape ? other.model.feedforward : other.model.heads) = other_shape ? 64 : 4;
    const auto message = message_of([&] { TextTrainer(other, {folder.path("run"), true, "new"}, watcher); });
    EXPECT_NE(message.find("another model"), std::string::npos) << message;
    EXPECT_EQ(read(folder.path("run/log.jsonl")), before);
    EXPECT_EQ(read(folder.path("run/config.toml")), "");
  }
}

TEST(Trainer, BadOptionsAreRefusedBeforeAnythingIsWritten) {
  const Folder folder;
  Watcher watcher;
  const auto refuses = [&](const std::string& words, const std::function<void(TextRun&)>& change) {
    auto o = plain_run(folder, 1);
    change(o);
    const auto message = message_of([&] { TextTrainer(o, {folder.path("run"), false, ""}, watcher); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(folder.path("run")));
  };
  refuses("has 3600 symbols", [](auto& o) { o.stages[0].length = 4000; });
  refuses("missing.txt", [&](auto& o) { o.data = folder.path("missing.txt"); });
  refuses("beta1", [](auto& o) { o.optimizer.beta1 = 1; });
  refuses("clip", [](auto& o) { o.clip = -1; });
  refuses("accumulate", [](auto& o) { o.accumulate = 5; });
  refuses("learned positions", [](auto& o) {
    o.model.positions = "learned";
    o.model.length = 8;
  });
  refuses("device", [](auto& o) { o.device = "gpu"; });
}

TEST(Trainer, TheBestCheckpointByDevLossIsMarkedAndKept) {
  const Folder folder;
  auto o = plain_run(folder, 8);
  o.checkpoint_every = 1;
  o.keep = 1;
  Watcher watcher;
  TextTrainer(o, {folder.path("run"), false, ""}, watcher).run();
  std::int64_t best = 0;
  for (std::size_t i = 0; i < watcher.reports.size(); ++i) {
    if (dev_loss(watcher.reports[i]) < dev_loss(watcher.reports[best])) best = static_cast<std::int64_t>(i);
  }
  const auto marked = io::best_checkpoint(folder.path("run"));
  ASSERT_TRUE(marked);
  EXPECT_EQ(marked->step, best + 1);
  EXPECT_NO_THROW(io::load_checkpoint(io::checkpoint_folder(folder.path("run"), best + 1)));
  EXPECT_NE(models::model_of_run(folder.path("run"), "best").file.string().find("step-" + std::to_string(best + 1)),
            std::string::npos);
}

TEST(Trainer, TheAverageIsWhatEvalReadsAndDevScores) {
  const Folder folder;
  auto o = plain_run(folder, 5);
  o.ema = 0.9;
  Watcher watcher;
  TextTrainer trainer(o, {folder.path("run"), false, ""}, watcher);
  trainer.run();
  const auto file = models::model_of_run(folder.path("run"), "newest").file;
  EXPECT_EQ(file.filename(), "ema.safetensors");
  auto model = models::load_language_model(file, device());
  const data::Text text(o.data, "bytes");
  const auto score = eval::evaluate(model, text, data::Split::dev,
                                    {.window = 16, .step = 8, .batch = o.eval_batch, .tokens = o.eval_tokens});
  EXPECT_DOUBLE_EQ(score.nats, dev_loss(watcher.reports.back()));
  EXPECT_FALSE(model->parameters()[0].equal(trainer.model()->parameters()[0]));
}

TEST(Trainer, StepsThatAreReadLaterAreTheSameSteps) {
  const Folder folder;
  const auto run = [&](const std::string& name, std::int64_t behind) {
    auto o = with_hooks(small_run(folder));
    o.behind = behind;
    Watcher watcher;
    TextTrainer trainer(o, {folder.path(name), false, ""}, watcher);
    spoil(trainer, 2, 4);
    trainer.run();
    for (std::size_t i = 0; i < watcher.reports.size(); ++i) {
      EXPECT_EQ(watcher.reports[i].step, static_cast<std::int64_t>(i) + 1);
    }
  };
  run("at-once", 0);
  run("later", 3);
  if (on_cpu()) expect_same_run(folder.path("at-once"), folder.path("later"), 8);
}

TEST(Trainer, GivesUpBeforeTheNextStepEvenWhereStepsAreReadLater) {
  const Folder folder;
  auto o = with_hooks(plain_run(folder, 20));
  o.give_up = 3;
  o.behind = 8;
  Watcher watcher;
  TextTrainer trainer(o, {folder.path("run"), false, ""}, watcher);
  spoil(trainer, 2, 5);  // the next would be good again
  EXPECT_NE(message_of([&] { trainer.run(); }).find("3 steps in a row"), std::string::npos);
  EXPECT_EQ(trainer.step(), 5);
  EXPECT_EQ(log_of(folder.path("run")).size(), 5U);
}

TEST(Trainer, ARunThatFailsInItsFirstStepLeavesNoFolder) {
  const Folder folder;
  Watcher watcher;
  TextTrainer trainer(plain_run(folder, 3), {folder.path("run"), false, ""}, watcher);
  trainer.model()->parameters().front().register_hook([](const torch::Tensor& g) -> torch::Tensor {
    TORCH_CHECK(false, "too large");
    return g;
  });
  EXPECT_TRUE(fs::exists(folder.path("run")));
  EXPECT_NE(message_of([&] { trainer.run(); }).find("too large"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder.path("run")));
}

TEST(Trainer, ARunThatCannotFitIntoMemoryIsRefusedBeforeAnythingIsBuilt) {
  const Folder folder;
  Watcher watcher;
  const auto refuses = [&](const std::string& words, const std::function<void(TextRun&)>& change) {
    auto o = plain_run(folder, 1);
    change(o);
    const auto message = message_of([&] { TextTrainer(o, {folder.path("run"), false, ""}, watcher); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(folder.path("run")));
  };
  refuses("choose a smaller model", [](auto& o) { o.model.features = o.model.layers = 1 << 24; });
  refuses("choose a smaller --batch", [](auto& o) { o.stages[0].batch = 1'000'000'000; });
}

TEST(Trainer, TheEstimateOfMemoryIsBelowWhatIsUsed) {
  const Folder folder;
  Watcher watcher;
  auto o = plain_run(folder, 1);
  o.model = models::find_language_model("cp-tiny").options;
  o.stages = {{64, 8, 1, 1e-3, 0}};
  TextTrainer(o, {folder.path("run"), false, ""}, watcher).run();
  const auto& family = models::find_family("language_model");
  const auto least = train::least_memory(o, tasks::task_of(family), family, list_options(o.model));
  EXPECT_LT(least, static_cast<double>(watcher.reports.back().memory));
  EXPECT_GT(least, 16.0 * 100'000) << "weights, gradients and AdamW of 100,000 parameters";
}

TEST(Trainer, ARunFolderThatIsRemovedEndsTheRun) {
  const Folder folder;
  Watcher watcher;
  auto o = plain_run(folder, 4);
  TextTrainer trainer(o, {folder.path("run"), false, ""}, watcher);
  fs::remove_all(folder.path("run"));
  const auto message = message_of([&] { trainer.run(); });
  EXPECT_NE(message.find("run/checkpoints: was removed or replaced"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(folder.path("run"))) << "and is not made again";
}

TEST(Trainer, LoadersChangeNothing) {
  const Folder folder;
  auto o = small_run(folder);
  Watcher watcher;
  o.loaders = 0;
  TextTrainer(o, {folder.path("none"), false, ""}, watcher).run();
  for (const std::int64_t loaders : {1, 3}) {
    o.loaders = loaders;
    const auto run = folder.path("run" + std::to_string(loaders));
    TextTrainer(o, {run, false, ""}, watcher).run();
    expect_same_run(folder.path("none"), run, 8);
  }
}

TEST(Trainer, EpochsAreRefusedWhereDataHaveNone) {
  const Folder folder;
  auto o = plain_run(folder, 4);
  o.stages[0].epochs = 2;
  Watcher watcher;
  const auto message = message_of([&] { TextTrainer(o, {folder.path("run"), false, ""}, watcher); });
  EXPECT_NE(message.find("have no epochs"), std::string::npos) << message;
}

TEST(Trainer, CheckpointsByTheClockChangeNothingElse) {
  const Folder folder;
  auto o = small_run(folder);
  o.checkpoint_every = 100;
  o.checkpoint_minutes = 0;
  Watcher watcher;
  TextTrainer(o, {folder.path("whole"), false, ""}, watcher).run();
  EXPECT_EQ(io::checkpoint_steps(folder.path("whole")), (std::vector<std::int64_t>{8}));
  o.checkpoint_minutes = 1e-9;  // at every step
  TextTrainer(o, {folder.path("run"), false, ""}, watcher).run();
  EXPECT_EQ(io::checkpoint_steps(folder.path("run")), (std::vector<std::int64_t>{7, 8}));
  expect_same_run(folder.path("whole"), folder.path("run"), 8);
}

TEST(Trainer, CheckpointsKnowTheLengthOfTheirRows) {
  const Folder folder;
  auto o = small_run(folder);  // 4 steps of 16 tokens, 4 of 24
  o.keep = 10;
  Watcher watcher;
  TextTrainer(o, {folder.path("run"), false, ""}, watcher).run();
  const auto length = [&](std::int64_t step) {
    const auto file = io::checkpoint_folder(folder.path("run"), step) / "ema.safetensors";
    return models::describe_model(file).metadata.at("contextpool.length");
  };
  EXPECT_EQ(length(2), "16");
  EXPECT_EQ(length(4), "16");
  EXPECT_EQ(length(6), "24");
}

TEST(ProgressLine, FitsIntoANarrowTerminal) {
  const train::StepReport report{.step = 120,
                                 .steps = 1000,
                                 .loss = std::log(2) * 1.5,
                                 .figures = {{"bpc", 1.5}},
                                 .units_per_second = 4512,
                                 .seconds_left = 62,
                                 .memory = 812'000'000};
  EXPECT_EQ(train::progress_line(report, 64), "step 120/1000  loss 1.0397  1.500 bpc  4.5k tokens/s  ETA 1:02");
  EXPECT_EQ(train::progress_line(report, 40), "step 120/1000  1.500 bpc  ETA 1:02");
  for (std::size_t width = 1; width < 80; ++width) EXPECT_LE(train::progress_line(report, width).size(), width);
}

TEST(ProgressLine, SaysWhatMatters) {
  const auto line = train::progress_line({.step = 120,
                                          .steps = 1000,
                                          .loss = std::log(2) * 1.5,
                                          .figures = {{"bpc", 1.5}},
                                          .units_per_second = 4512,
                                          .seconds_left = 62,
                                          .memory = 812'000'000});
  EXPECT_EQ(line, "step 120/1000  loss 1.0397  1.500 bpc  4.5k tokens/s  812 MB  ETA 1:02");
}

}  // namespace
}  // namespace contextpool::testing
