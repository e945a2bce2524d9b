// train::Updater: what a step changes, and what one that is skipped does not.
#include "contextpool/train/updater.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "../device.h"
#include "contextpool/models/registry.h"
#include "contextpool/tasks/registry.h"

namespace contextpool::testing {
namespace {

// A small classifier with BatchNorm, on generated pictures.
std::shared_ptr<tasks::Task> classifier() {
  const auto found = models::find_model("resnet-20");
  const auto& kind = tasks::task_of(found.family);
  const auto data = kind.generated_data(kind.train_options());
  const std::shared_ptr<tasks::Task> task = kind.open(found.family, kind.complete(found.model.options, data), data);
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
  const auto task = classifier();
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

}  // namespace
}  // namespace contextpool::testing
