#include "contextpool/train/measured.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <future>
#include <utility>

#include "contextpool/io/safetensors.h"
#include "contextpool/runtime/device.h"
#include "contextpool/train/memory.h"

namespace contextpool::train {
namespace {

constexpr std::int64_t kBatches = 4;  // different ones, in turn
constexpr double kBackward = 2;       // forward passes that a backward pass costs
constexpr int kStepsUntilRecorded = 4;

tasks::StepPlace place_of(const TrainOptions& options, std::int64_t step) {
  const auto& stage = options.stages.front();
  return {options.seed, step, stage.length, stage.batch, step * stage.batch};
}

template <typename F>
double median(const std::vector<runtime::Times>& turns, F figure) {
  std::vector<double> all;
  for (const auto& turn : turns) all.push_back(figure(turn));
  std::sort(all.begin(), all.end());
  const auto half = all.size() / 2;
  return all.size() % 2 == 1 ? all[half] : (all[half - 1] + all[half]) / 2;
}

std::int64_t bytes_of(const io::NamedTensors& tensors) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace

MeasuredModel::MeasuredModel(std::string name, const models::Family& family, const OptionList& model_options,
                             const tasks::TaskKind& kind, const OptionList& data_options, const TrainOptions& options)
    : name_(std::move(name)), device_(runtime::device_named(options.device)) {
  validate(options);
  const auto& stage = options.stages.front();
  kind.check(model_options, data_options, stage.length, stage.batch, parts(options));
  task_ = kind.open(family, model_options, data_options);
  task_->check_stage(stage.length, stage.batch);
  check_memory(options, kind, family, task_->model_options(), device_);
  torch::manual_seed(static_cast<std::uint64_t>(options.seed));
  task_->build(device_);
  updater_ = std::make_unique<Updater>(task_, options, std::make_shared<runtime::Processes>());
  updater_->set_recording(false);
  for (std::int64_t i = 0; i < kBatches; ++i) {
    batches_.push_back(make_step_batch(*task_, options, place_of(options, i), /*rank=*/0));
    for (const auto& part : batches_.back()) units_ += static_cast<double>(part.units) / kBatches;
  }
  flops_per_unit_ = kind.flops_per_unit(family, task_->model_options(), stage.length);
  lr_ = stage.lr;
  for (const auto& p : task_->model()->parameters()) parameters_ += p.numel();
}

void MeasuredModel::step() {
  updater_->step(batches_[static_cast<std::size_t>(steps_ % kBatches)], steps_, lr_);
  ++steps_;
}

void MeasuredModel::warm_up(int steps) {
  for (int i = 0; i < steps; ++i) step();
}

void MeasuredModel::record_steps() {
  updater_->set_recording(true);
  warm_up(kStepsUntilRecorded);
}

void MeasuredModel::take_turn(int steps) {
  turns_.push_back(runtime::time_calls(device_, steps, [this] { step(); }));
}

void MeasuredModel::measure_memory() {
  auto state = updater_->optimizer().state();
  for (auto& tensor : io::named_tensors(*task_->model())) state.push_back(std::move(tensor));
  if (updater_->average()) {
    for (const auto& tensor : updater_->average()->tensors()) state.push_back(tensor);
  }
  state_memory_ = bytes_of(state);
  // The gradients of the step before belong to the step that makes them.
  for (const auto& p : task_->model()->parameters()) p.mutable_grad().reset();
  step_memory_ = runtime::peak_of(device_, [this] { step(); });
}

std::vector<runtime::OperatorTime> MeasuredModel::profile(int steps) {
  updater_->set_recording(false);  // a replay does not say which operator a kernel is of
  auto times = runtime::profile(device_, [&] { warm_up(steps); });
  for (auto& time : times) {
    time.seconds /= steps;
    time.calls /= steps;
  }
  return times;
}

MeasuredModel::Cost MeasuredModel::cost() const {
  TORCH_CHECK(!turns_.empty(), "contextpool: a model without a timed step has no cost");
  Cost cost;
  cost.times.seconds = median(turns_, [](const auto& t) { return t.seconds; });
  cost.times.host_seconds = median(turns_, [](const auto& t) { return t.host_seconds; });
  if (turns_.front().device_seconds) {
    cost.times.device_seconds = median(turns_, [](const auto& t) { return *t.device_seconds; });
  }
  if (turns_.front().processor_seconds) {
    cost.times.processor_seconds = median(turns_, [](const auto& t) { return *t.processor_seconds; });
  }
  cost.units_per_second = units_ / cost.times.seconds;
  cost.flops_per_second = (1 + kBackward) * flops_per_unit_ * cost.units_per_second;
  cost.state_memory = state_memory_;
  cost.step_memory = step_memory_;
  return cost;
}

LoadingSpeed loading_speed(const tasks::Task& task, const TrainOptions& options, int threads, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto processor = std::clock();
  std::atomic<std::int64_t> next = 0;
  std::vector<std::future<double>> loaders;
  for (int i = 0; i < threads; ++i) {
    loaders.push_back(std::async(std::launch::async, [&] {
      double units = 0;
      do {
        for (const auto& part : make_step_batch(task, options, place_of(options, next++), /*rank=*/0)) {
          units += static_cast<double>(part.units);
        }
      } while (passed() < seconds);
      return units;
    }));
  }
  double units = 0;
  for (auto& loader : loaders) units += loader.get();
  return {units / passed(), units / (static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC)};
}

}  // namespace contextpool::train
