#include <concepts>
#include <nlohmann/json.hpp>
#include <numeric>
#include <type_traits>

#include "contextpool/data/batch.h"
#include "contextpool/data/sampler.h"
#include "contextpool/models/model_file.h"
#include "contextpool/models/registry.h"
#include "toy/model.h"
#include "toy/spirals.h"
#include "toy/toy.h"

namespace contextpool::toy {
namespace {

using tasks::Batch;
using tasks::StepPlace;

struct SpiralOptions {
  std::int64_t points = 200;  // of the training split
};

template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, SpiralOptions>
void for_each_option(Options& options, F f) { f("points", options.points, "of the training split"); }

Batch batch_of(const Spirals& spirals, Spirals::Split split, const std::vector<std::int64_t>& items) {
  std::vector<float> xy;
  std::vector<std::int64_t> labels;
  for (const auto i : items) {
    const auto p = spirals.item(split, i);
    xy.insert(xy.end(), {static_cast<float>(p.x), static_cast<float>(p.y)});
    labels.push_back(p.label);
  }
  const auto count = static_cast<std::int64_t>(items.size());
  return {{torch::tensor(xy).view({-1, 2}), torch::tensor(labels)}, static_cast<double>(count), count};
}

double accuracy(PerceptronImpl& model, const Spirals& spirals, torch::Device device) {
  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> all(static_cast<std::size_t>(spirals.dev));
  std::iota(all.begin(), all.end(), 0);
  const auto batch = batch_of(spirals, Spirals::Split::dev, all).tensors;
  const auto right = model.forward(batch[0].to(device)).argmax(1).cpu() == batch[1];
  return right.to(torch::kDouble).mean().item<double>();
}

class SpiralTask : public tasks::Task {
 public:
  SpiralTask(const tasks::TaskKind& kind, const models::Family& family, const OptionList& model,
             const OptionList& options)
      : Task(kind, family, model, options), spirals_{.train = options.get<std::int64_t>("points")} {}

  std::string data_identity() const override { return nlohmann::json{{"points", spirals_.train}}.dump(); }
  void check_data(const std::string& trained_on, const std::string& checkpoint) const override {
    TORCH_CHECK_VALUE(trained_on == data_identity(), checkpoint, ": trained on other points: ", trained_on);
  }
  std::int64_t steps_per_epoch(std::int64_t /*length*/, std::int64_t batch) const override {
    return (spirals_.train + batch - 1) / batch;
  }
  double units_per_step(std::int64_t /*length*/, std::int64_t batch) const override {
    return static_cast<double>(batch);
  }

  Batch batch(const StepPlace& place, tasks::Part part) const override {
    const auto rows = data::part_of({0, place.batch}, part.index, part.count);
    const auto first = place.items_before + rows.begin;
    std::vector<std::int64_t> items;
    for (const auto& e : data::epoch_items(place.seed, spirals_.train, first, rows.end - rows.begin)) {
      items.push_back(e.item);
    }
    return batch_of(spirals_, Spirals::Split::train, items);
  }
  torch::Tensor loss(const std::vector<torch::Tensor>& batch, bool /*bfloat16*/) override {
    namespace F = torch::nn::functional;
    return F::cross_entropy(perceptron().forward(batch[0]), batch[1],
                            F::CrossEntropyFuncOptions().reduction(torch::kSum));
  }
  std::optional<tasks::Score> score_dev(const StepPlace& /*place*/, bool /*bfloat16*/) override {
    return tasks::Score{{{"accuracy", accuracy(perceptron(), spirals_, device())}}, /*higher_is_better=*/true};
  }

 private:
  PerceptronImpl& perceptron() { return dynamic_cast<PerceptronImpl&>(*model()); }
  Spirals spirals_;
};

class SpiralKind : public tasks::TaskKind {
 public:
  std::vector<std::string> families() const override { return {"toy_perceptron"}; }
  std::string unit() const override { return "points"; }
  std::string summary() const override { return "Trains a perceptron to tell two spirals apart."; }
  OptionList train_options() const override { return list_options(SpiralOptions{}); }
  std::vector<std::string> fixed_options() const override { return {"points"}; }
  void check(const OptionList& /*model*/, const OptionList& options, std::int64_t /*length*/, std::int64_t batch,
             std::int64_t parts) const override {
    TORCH_CHECK_VALUE(options.get<std::int64_t>("points") >= 2, "contextpool: points is ",
                      options.get<std::int64_t>("points"), ", expected at least 2");
    TORCH_CHECK_VALUE(parts <= batch, "contextpool: accumulate is ", parts, ", but a batch has ", batch, " points");
  }
  double least_activations(const OptionList& model, std::int64_t /*length*/, double batch,
                           bool /*bfloat16*/) const override {
    constexpr double kFloat = 4;  // bytes
    return kFloat * batch * static_cast<double>(model.get<std::int64_t>("hidden"));
  }
  std::unique_ptr<tasks::Task> open(const models::Family& family, const OptionList& model,
                                    const OptionList& options) const override {
    return std::make_unique<SpiralTask>(*this, family, model, options);
  }
  OptionList eval_options() const override { return {}; }
  tasks::EvalResult evaluate(const tasks::EvalRequest& request) const override {
    const auto model = models::load_model_of<PerceptronImpl>("toy_perceptron", request.file, request.device);
    const auto value = accuracy(*model, Spirals{}, request.device);
    return {std::to_string(value) + " of the dev points are right", nlohmann::json{{"accuracy", value}}.dump()};
  }
};

}  // namespace

std::unique_ptr<tasks::TaskKind> task() { return std::make_unique<SpiralKind>(); }

}  // namespace contextpool::toy
