// train::Updater: what a step changes, and what one that is skipped does not.
#include "contextpool/train/updater.h"

#include <gtest/gtest.h>

#include <ATen/Context.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "../device.h"
#include "contextpool/models/registry.h"
#include "contextpool/tasks/registry.h"

namespace contextpool::testing {
namespace {

using Settings = std::vector<std::pair<std::string, OptionValue>>;

// A named model on generated data.
std::shared_ptr<tasks::Task> task_of(const std::string& model, const Settings& of_model = {},
                                     const Settings& of_data = {}) {
  const auto found = models::find_model(model);
  const auto& kind = tasks::task_of(found.family);
  auto data = kind.generated_data(kind.train_options());
  for (const auto& [name, value] : of_data) data.set(name, value);
  auto options = kind.complete(found.model.options, data);
  for (const auto& [name, value] : of_model) options.set(name, value);
  const std::shared_ptr<tasks::Task> task = kind.open(found.family, options, data);
  torch::manual_seed(1);
  task->build(device());
  return task;
}

io::NamedTensors copy_of(const io::NamedTensors& tensors) {
  io::NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.detach().clone());
  return copies;
}

void expect_equal(const io::NamedTensors& now, const io::NamedTensors& before) {
  ASSERT_EQ(now.size(), before.size());
  for (std::size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(now[i].second.equal(before[i].second)) << now[i].first;
}

TEST(Updater, ASkippedStepLeavesModelOptimizerAndAverageAsTheyWere) {
  const auto task = task_of("resnet-20");  // which has BatchNorm
  train::TrainOptions options;
  options.accumulate = 2;
  options.ema = 0.9;
  options.optimizer.kind = "sgd";
  train::Updater updater(task, options, std::make_shared<runtime::Processes>());
  const auto step = [&](std::int64_t number) {
    const tasks::StepPlace place{.seed = 1, .step = number, .length = 1, .batch = 4, .items_before = 4 * number};
    return updater.step(train::make_step_batch(*task, options, place, /*rank=*/0), number, 0.1).figures;
  };
  const auto model = io::named_tensors(*task->model());
  const auto start = copy_of(model);
  EXPECT_TRUE(step(0).isfinite().all().item<bool>());
  for (std::size_t i = 0; i < model.size(); ++i) {  // BatchNorm's statistics among them
    EXPECT_FALSE(model[i].second.equal(start[i].second)) << model[i].first;
  }
  const auto before = copy_of(model), state = copy_of(updater.optimizer().state());
  const auto average = copy_of(updater.average()->tensors());
  task->model()->parameters().front().register_hook([](const torch::Tensor& g) { return g * NAN; });
  EXPECT_FALSE(step(1).isfinite().all().item<bool>());
  expect_equal(model, before);
  expect_equal(updater.optimizer().state(), state);
  expect_equal(updater.average()->tensors(), average);
}

// On a GPU.
struct ReplayCase {
  std::string name, model, optimizer;
  std::int64_t accumulate = 1, length = 32, batch = 8;
  bool bfloat16 = false;
  Settings of_model, of_data;
};

void PrintTo(const ReplayCase& of, std::ostream* out) { *out << of.name; }

class Replay : public ::testing::TestWithParam<ReplayCase> {
 protected:
  static void SetUpTestSuite() {
    // Which algorithms PyTorch chooses must not depend on chance, nor may the order of their sums: the backwards of
    // these attentions add as their thread blocks happen to end, where only a warning is asked for.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicCuDNN(true);
    set_fast_attention(false);
  }
  static void TearDownTestSuite() {
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
    at::globalContext().setDeterministicCuDNN(false);
    set_fast_attention(true);
  }

 private:
  static void set_fast_attention(bool on) {
    at::globalContext().setSDPUseCuDNN(on);
    at::globalContext().setSDPUseMemEfficient(on);
    at::globalContext().setSDPUseFlash(on);
  }
};

// What a training leaves behind: figures of each step, then model, optimizer and average.
struct Left {
  std::vector<torch::Tensor> figures;
  io::NamedTensors tensors;
  int replayed = 0;
};

// Twelve steps, each with its own rate; step 6 has rows of another number, and step 9 weights that make it skipped:
// large ones, as an average with NaN would be NaN, whatever its share.
Left train(const ReplayCase& of, bool graphs) {
  constexpr std::int64_t kSteps = 12, kSmaller = 6, kSkipped = 9;
  const auto task = task_of(of.model, of.of_model, of.of_data);
  train::TrainOptions options;
  options.accumulate = of.accumulate;
  options.bfloat16 = of.bfloat16;
  options.clip = 0.5;
  options.ema = 0.9;
  options.optimizer.kind = of.optimizer;
  options.cuda_graphs = graphs;
  train::Updater updater(task, options, std::make_shared<runtime::Processes>());
  Left left;
  std::int64_t items = 0;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const auto batch = step == kSmaller ? of.batch / 2 : of.batch;
    const tasks::StepPlace place{.seed = 1, .step = step, .length = of.length, .batch = batch, .items_before = items};
    items += batch;
    auto weight = task->model()->parameters().front().detach();
    const auto kept = weight.clone();
    if (step == kSkipped) weight.fill_(3e38);
    const auto step_batch = train::make_step_batch(*task, options, place, /*rank=*/0);
    left.figures.push_back(updater.step(step_batch, step, 1e-3 * static_cast<double>(step + 1)).figures.clone());
    if (step == kSkipped) weight.copy_(kept);
    left.replayed += updater.replaying() && step != kSmaller ? 1 : 0;
  }
  EXPECT_TRUE(updater.take_notes().empty());
  for (const auto& tensors :
       {io::named_tensors(*task->model()), updater.optimizer().state(), updater.average()->tensors()}) {
    for (const auto& [name, tensor] : tensors) left.tensors.emplace_back(name, tensor.detach().clone());
  }
  return left;
}

bool same(const Left& a, const Left& b) {
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    if (!a.tensors[i].second.equal(b.tensors[i].second)) return false;
  }
  return true;
}

TEST_P(Replay, IsToTheBitWhatIsLaunchedKernelByKernel) {
  if (device().is_cpu()) GTEST_SKIP() << "needs a GPU";
  const auto launched = train(GetParam(), /*graphs=*/false);
  EXPECT_TRUE(same(launched, train(GetParam(), /*graphs=*/false))) << "a step does not repeat itself, without graphs";
  const auto replayed = train(GetParam(), /*graphs=*/true);
  EXPECT_EQ(launched.replayed, 0);
  EXPECT_GE(replayed.replayed, 8);
  for (std::size_t step = 0; step < launched.figures.size(); ++step) {
    EXPECT_TRUE(replayed.figures[step].equal(launched.figures[step]) || step == 9)
        << "step " << step << ": " << replayed.figures[step] << launched.figures[step];
  }
  EXPECT_FALSE(replayed.figures[9].isfinite().all().item<bool>());
  expect_equal(replayed.tensors, launched.tensors);
}

INSTANTIATE_TEST_SUITE_P(
    Steps, Replay,
    ::testing::Values(
        ReplayCase{"LanguageModel", "cp-tiny", "adamw", 1, 32, 8, false, {{"dropout", 0.1}}, {}},
        ReplayCase{"LanguageModelInParts", "cp-tiny", "adamw", 3, 32, 12, true, {{"dropout", 0.1}}, {}},
        ReplayCase{"OtherMixers", "tiny", "adamw", 2, 32, 8, true, {{"mix", std::string("AC=canon,O=dynamic")}}, {}},
        ReplayCase{"MixedPictures",
                   "cp-vit-cifar",
                   "adamw",
                   1,
                   1,
                   8,
                   true,
                   {{"stochastic_depth", 0.2}},
                   {{"mixup", 0.8}, {"cutmix", 1.0}, {"flip", 0.5}, {"pad", std::int64_t{4}}}},
        ReplayCase{"BatchNorm", "cp-resnet-20", "sgd", 2, 1, 8, false, {}, {}}),
    [](const auto& info) { return info.param.name; });

// Batches of a translator have many shapes; adaptive spans say which part of a row is computed.
TEST(Replayable, AreTasksWhoseStepsAreAlike) {
  EXPECT_FALSE(task_of("nmt-tiny")->replayable());
  EXPECT_FALSE(task_of("adaptive-span-tiny")->replayable());
  EXPECT_TRUE(task_of("cp-tiny")->replayable());
}

}  // namespace
}  // namespace contextpool::testing
