// The translation task: what a step sees, its loss, resuming, and the file that it leaves.
#include "contextpool/tasks/translation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/base64.h"
#include "contextpool/data/translation/number_names.h"
#include "contextpool/eval/bleu.h"
#include "contextpool/models/model_file.h"
#include "contextpool/models/translators.h"
#include "contextpool/tasks/trained_translator.h"
#include "runs.h"

namespace contextpool::testing {
namespace {

using tasks::StepPlace;
using tasks::Translation;

constexpr std::int64_t kBatch = 400;

// ContextPool, dropout, micro-batches and an average: all that has state.
struct SmallRun : train::TrainOptions, tasks::TranslationOptions {
  models::TranslatorOptions model;
};

SmallRun small_translation() {
  SmallRun o;
  o.model = models::find_translator("cp-nmt-tiny").options;
  o.model.layers = 1;
  o.model.features = 16;
  o.model.heads = 2;
  o.model.feedforward = 32;
  o.model.pool.hidden = 8;
  o.data = "numbers-de";
  o.numbers = 300;
  o.vocabulary_size = 80;
  o.max_length = 64;
  o.eval_sentences = 4;
  o.stages = {{256, kBatch, 6, 1e-2, 2}};
  o.accumulate = 2;
  o.ema = 0.9;
  o.device = device().str();
  o.behind = 0;  // a step is reported before the next is enqueued, on a GPU too
  o.checkpoint_every = 3;
  return o;
}

std::shared_ptr<Translation> open(const SmallRun& run) { return std::make_shared<Translation>(run.model, run); }

StepPlace place(std::int64_t step) { return {.seed = 3, .step = step, .length = 256, .batch = kBatch}; }

std::string row_of(const torch::Tensor& tensor, std::int64_t row) {
  std::string text;
  for (std::int64_t i = 0; i < tensor.size(1); ++i) {
    const auto symbol = tensor[row][i].item<std::int64_t>();
    if (symbol != data::kPad) text += std::to_string(symbol) + " ";
  }
  return text;
}

TEST(Translation, AnEpochShowsEveryPairOnceAndStepsFollowFromSeedAndStepAlone) {
  const auto task = open(small_translation()), other = open(small_translation());
  const auto steps = task->steps_per_epoch(256, kBatch);
  ASSERT_GT(steps, 3);
  std::multiset<std::string> sources;
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto batch = task->batch(place(step), {});
    EXPECT_LE(batch.tensors[0].numel(), kBatch);
    EXPECT_LE(batch.tensors[2].numel(), kBatch);
    EXPECT_EQ(batch.weight, batch.tensors[2].ne(data::kPad).sum().item<double>());
    for (std::int64_t row = 0; row < batch.tensors[0].size(0); ++row) sources.insert(row_of(batch.tensors[0], row));
  }
  EXPECT_EQ(sources.size(), 300U);
  EXPECT_EQ(std::set<std::string>(sources.begin(), sources.end()).size(), 300U);
  for (const std::int64_t step : {steps + 2, std::int64_t{1}}) {
    EXPECT_TRUE(torch::equal(task->batch(place(step), {}).tensors[0], other->batch(place(step), {}).tensors[0]));
  }
}

TEST(Translation, MicroBatchesAreTheRowsOfTheBatch) {
  const auto task = open(small_translation());
  const auto whole = task->batch(place(2), {});
  double weight = 0;
  std::int64_t rows = 0;
  for (const std::int64_t part : {0, 1}) {
    const auto batch = task->batch(place(2), {part, 2});
    weight += batch.weight;
    for (std::int64_t row = 0; row < batch.tensors[0].size(0); ++row) {
      EXPECT_EQ(row_of(batch.tensors[0], row), row_of(whole.tensors[0], rows++));
    }
  }
  EXPECT_EQ(rows, whole.tensors[0].size(0));
  EXPECT_EQ(weight, whole.weight);
}

TEST(Translation, TheLossIsTheSmoothedCrossEntropyOfRealSymbols) {
  auto run = small_translation();
  run.label_smoothing = 0.2;
  const auto task = open(run);
  task->build(torch::kCPU);
  task->model()->eval();
  const torch::NoGradGuard no_grad;
  const auto batch = task->batch(place(1), {});
  const auto& target = batch.tensors[2];
  const auto p =
      torch::log_softmax(task->translator()
                             ->forward(batch.tensors[0], nn::Padding(batch.tensors[0] != 0), batch.tensors[1])
                             .to(torch::kDouble),
                         2);
  double expected = 0;
  for (std::int64_t b = 0; b < target.size(0); ++b) {
    for (std::int64_t t = 0; t < target.size(1); ++t) {
      const auto symbol = target[b][t].item<std::int64_t>();
      if (symbol == data::kPad) continue;
      expected -= 0.8 * p[b][t][symbol].item<double>() + 0.2 * p[b][t].mean().item<double>();
    }
  }
  EXPECT_NEAR(task->loss(batch.tensors, false).item<double>(), expected, 1e-5 * expected);
}

TEST(Translation, AStoppedRunGoesOnToTheSameBitsAndItsFileTranslates) {
  const Folder folder;
  const auto run = small_translation();
  Watcher watcher;
  train::Trainer whole(run, open(run), {folder.path("whole"), false, ""}, watcher);
  EXPECT_EQ(whole.run(), train::Outcome::finished);
  ASSERT_TRUE(watcher.reports.back().dev);
  EXPECT_EQ(watcher.reports.back().dev->figures[0].first, "exact");
  EXPECT_TRUE(watcher.reports.back().dev->higher_is_better);
  EXPECT_TRUE(std::isfinite(watcher.reports.back().dev->figures[1].second));

  Watcher stopped;
  stopped.stop_after = 4;
  EXPECT_EQ(train::Trainer(run, open(run), {folder.path("stopped"), false, ""}, stopped).run(),
            train::Outcome::stopped);
  train::Trainer second(run, open(run), {folder.path("stopped"), true, ""}, watcher);
  EXPECT_EQ(second.run(), train::Outcome::finished);
  expect_same_run(folder.path("whole"), folder.path("stopped"), 6);

  const auto file = models::model_of_run(folder.path("whole"), "newest").file;
  tasks::TrainedTranslator translator(file, torch::kCPU);
  const auto found = translator.translate({"twenty-one", "", "one hundred"}, {.search = {.beam = 2, .n_best = 2}});
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].size(), 2U);
  EXPECT_GE(found[0][0].score, found[0][1].score);
  ASSERT_EQ(found[1].size(), 1U);
  EXPECT_EQ(found[1][0].text, "");
  const auto alone = translator.translate({"one hundred"}, {.search = {.beam = 2}});
  EXPECT_EQ(alone[0][0].text, found[2][0].text);
}

TEST(Translation, AResumedRunRefusesAnotherVocabularyOrTextByName) {
  const Folder folder;
  auto run = small_translation();
  run.stages[0].steps = 1;
  Watcher watcher;
  train::Trainer(run, open(run), {folder.path("run"), false, ""}, watcher).run();
  auto other = run;
  other.vocabulary_kind = "unigram";
  const auto resume = [&](const SmallRun& with) {
    return message_of([&] { train::Trainer(with, open(with), {folder.path("run"), true, ""}, watcher); });
  };
  EXPECT_NE(resume(other).find("not the vocabulary of this run"), std::string::npos);
  const auto vocabulary = folder.path("vocabulary.model");
  tasks::TrainedTranslator(models::model_of_run(folder.path("run"), "newest").file, torch::kCPU)
      .vocabularies()
      .target.save(vocabulary);
  other = run;
  other.vocabulary = vocabulary;
  other.numbers = 200;
  EXPECT_NE(resume(other).find("not the text of this run: it has 200 pairs"), std::string::npos);
}

TEST(Translation, AVocabularyThatDoesNotFitTheModelIsRefusedByName) {
  const Folder folder;
  auto run = small_translation();
  run.stages[0].steps = 1;
  run.accumulate = 1;
  run.joint = false;
  run.vocabulary_size = 60;
  Watcher watcher;
  train::Trainer(run, open(run), {folder.path("run"), false, ""}, watcher).run();
  const auto file = models::model_of_run(folder.path("run"), "newest").file;
  tasks::TrainedTranslator whole(file, torch::kCPU);
  EXPECT_NE(whole.vocabularies().source.checksum(), whole.vocabularies().target.checksum());
  EXPECT_EQ(whole.model()->options().source_vocabulary, whole.vocabularies().source.size());

  const io::SafetensorsFile opened(file);
  const auto with = [&](const std::string& key, const std::string& value) {
    auto metadata = opened.metadata();
    metadata[key] = value;
    const auto path = folder.path("other.safetensors");
    io::write_safetensors(path, opened.tensors(), metadata);
    return message_of([&] { tasks::TrainedTranslator(path, torch::kCPU); });
  };
  const auto larger =
      data::train_vocabularies(data::number_pairs("fr", data::Split::train, 300, 1), {.size = 90}, true);
  const auto message = with(tasks::kVocabularyKey, to_base64(larger.target.bytes()));
  EXPECT_NE(message.find("other.safetensors"), std::string::npos) << message;
  EXPECT_NE(message.find("has 90 pieces, but the model has embeddings for 60"), std::string::npos) << message;
  EXPECT_NE(with(tasks::kVocabularyKey, "!!!!").find("is not base64"), std::string::npos);
  EXPECT_NE(with(tasks::kVocabularyKey, "AAAA").find("not a SentencePiece vocabulary"), std::string::npos);
}

TEST(Translation, TwoFilesOrATableAndHeldOutPairs) {
  const Folder folder;
  std::string source, target, table;
  const auto pairs = data::number_pairs("fr", data::Split::train, 200, 1);
  for (std::int64_t i = 0; i < pairs.size(); ++i) {
    source += std::string(pairs.pair(i).source) + "\n";
    target += std::string(pairs.pair(i).target) + "\n";
    table += std::string(pairs.pair(i).source) + "\t" + std::string(pairs.pair(i).target) + "\n";
  }
  auto run = small_translation();
  run.data = folder.write("text.en", source);
  run.target = folder.write("text.fr", target);
  run.dev_share = 0.1;
  const auto of_files = open(run);
  EXPECT_EQ(nlohmann::json::parse(of_files->data_identity())["pairs"], 180);
  EXPECT_NE(of_files->take_notes().front().find("200 lines, 200 kept"), std::string::npos);
  run.data = folder.write("text.tsv", table);
  run.target = "";
  EXPECT_EQ(open(run)->data_identity(), of_files->data_identity());
  run.dev_source = run.data;
  EXPECT_EQ(nlohmann::json::parse(open(run)->data_identity())["pairs"], 200);
}

TEST(Base64, IsThatOfTheStandard) {
  for (const auto& [bytes, letters] : {std::pair{"", ""}, std::pair{"f", "Zg=="}, std::pair{"fo", "Zm8="},
                                       std::pair{"foo", "Zm9v"}, std::pair{"foobar", "Zm9vYmFy"}}) {
    EXPECT_EQ(to_base64(bytes), letters);
    EXPECT_EQ(from_base64(letters, "a test"), bytes);
  }
  const std::string all("\xff\x00\x10\xfe", 4);
  EXPECT_EQ(from_base64(to_base64(all), "a test"), all);
  for (const auto* wrong : {"Zg=", "Z===", "Zg==Zg==", "Zm9?", "Zg=a"}) {
    EXPECT_NE(message_of([&] { from_base64(wrong, "a test"); }).find("a test: is not base64"), std::string::npos)
        << wrong;
  }
}

}  // namespace
}  // namespace contextpool::testing
