#include "tasks/recall.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "contextpool/runtime/device.h"

namespace contextpool::tasks {
namespace {

using Json = nlohmann::ordered_json;
using torch::Tensor;
namespace F = torch::nn::functional;

// In nats, over the answers that are asked for.
Tensor sum_of_losses(const Tensor& logits, const Tensor& target) {
  return F::cross_entropy(logits.flatten(0, 1).to(torch::kFloat), target.flatten(),
                          F::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(data::kNotAsked));
}

// [answers]: how many hops each asks for, 1 in recall.
Tensor hops_of(const data::RecallOptions& rows, const data::Batch& batch, const Tensor& asked) {
  if (rows.kind == "recall") return torch::ones({asked.sum().item<std::int64_t>()}, torch::kLong);
  return batch.input.roll(1, 1).masked_select(asked);  // the symbol before the query
}

std::string figure(const char* format, double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

}  // namespace

bool is_recall(const std::string& data) {
  const auto kinds = data::recall_kinds();
  return std::find(kinds.begin(), kinds.end(), data) != kinds.end() && !std::filesystem::exists(data);
}

data::RecallOptions rows_of(const LanguageModellingOptions& options, std::int64_t length) {
  TORCH_CHECK_VALUE(length % 2 == 0 && length / 2 > options.pairs, options.data, ": a row of ", length,
                    " symbols; expected an even number, of which ", options.pairs, " pairs need ", 2 * options.pairs,
                    " and each query 2; change --length or --pairs");
  return {options.data, options.symbols, options.pairs, length / 2 - options.pairs, options.hops};
}

Recall::Recall(const TaskKind& kind, const models::Family& family, OptionList model, LanguageModellingOptions options)
    : LanguageModelTask(kind, family, std::move(model), list_options(options)), options_(std::move(options)) {}

std::string Recall::data_identity() const {
  Json json{{"generated", options_.data}, {"symbols", options_.symbols}, {"pairs", options_.pairs}};
  if (options_.data == "k-hop") json["hops"] = options_.hops;
  return json.dump();
}

void Recall::check_data(const std::string& trained_on, const std::string& checkpoint) const {
  TORCH_CHECK_VALUE(Json::parse(trained_on) == Json::parse(data_identity()), options_.data,
                    ": not the data of this run: ", checkpoint, " was trained on ", trained_on, ", these are ",
                    data_identity(), "; a resumed run keeps them");
}

Batch Recall::batch(const StepPlace& place, Part part) const {
  const auto of_part = data::part_of({0, place.batch}, part.index, part.count);
  const auto rows = rows_of(options_, place.length);
  auto sequences = data::make_recall(rows, data::Split::train, place.seed, place.step, of_part);
  const auto count = of_part.end - of_part.begin;
  return {{std::move(sequences.input), std::move(sequences.target)},
          static_cast<double>(count * rows.queries),
          count * place.length};
}

Tensor Recall::loss(const std::vector<Tensor>& batch, bool bfloat16) {
  return sum_of_losses(logits(batch[0], bfloat16), batch[1]);
}

std::optional<Score> Recall::score_dev(const StepPlace& place, bool bfloat16) {
  if (options_.eval_tokens == 0) return std::nullopt;
  auto model = language_model();
  const auto rows = std::max<std::int64_t>(1, options_.eval_tokens / place.length);
  const auto score =
      score_recall(model, rows_of(options_, place.length), data::Split::dev, rows, options_.eval_batch, bfloat16);
  std::vector<Figure> figures{{"accuracy", score.accuracy()}, {"loss", score.nats / static_cast<double>(score.all())}};
  for (std::size_t hops = 1; score.answers.size() > 1 && hops <= score.answers.size(); ++hops) {
    figures.emplace_back("accuracy_" + std::to_string(hops) + "_hops", score.accuracy(hops));
  }
  return Score{std::move(figures), /*higher_is_better=*/true};
}

std::vector<nn::WindowStatistics> Recall::windows(const StepPlace& place, bool bfloat16) {
  return windows_on(data::make_recall(rows_of(options_, place.length), data::Split::dev, 0, 0, {0, 1}).input, bfloat16);
}

std::int64_t RecallScore::all() const { return std::accumulate(answers.begin(), answers.end(), std::int64_t{0}); }

double RecallScore::accuracy() const {
  return static_cast<double>(std::accumulate(right.begin(), right.end(), std::int64_t{0})) /
         static_cast<double>(std::max<std::int64_t>(1, all()));
}

double RecallScore::accuracy(std::size_t hops) const {
  return static_cast<double>(right.at(hops - 1)) / static_cast<double>(std::max<std::int64_t>(1, answers.at(hops - 1)));
}

RecallScore score_recall(models::LanguageModel& model, const data::RecallOptions& rows, data::Split split,
                         std::int64_t count, std::int64_t batch, bool bfloat16) {
  const torch::NoGradGuard no_grad;
  const bool training = model->is_training();
  model->eval();
  const auto device = model->parameters().front().device();
  const std::int64_t groups = rows.kind == "recall" ? 1 : rows.hops;
  auto answers = torch::zeros({groups}, torch::kLong), right = torch::zeros({groups}, torch::kLong);
  RecallScore score;
  for (std::int64_t first = 0; first < count; first += batch) {
    const auto sequences = data::make_recall(rows, split, 0, 0, {first, std::min(first + batch, count)});
    Tensor logits;
    {
      const runtime::Autocast autocast(device, bfloat16);
      logits = model->forward(sequences.input.to(device)).cpu();
    }
    score.nats += sum_of_losses(logits, sequences.target).item<double>();
    const auto asked = sequences.target != data::kNotAsked;
    const auto group = hops_of(rows, sequences, asked) - 1;
    const auto hit = (logits.argmax(-1) == sequences.target).masked_select(asked).to(torch::kLong);
    answers.index_add_(0, group, torch::ones_like(group));
    right.index_add_(0, group, hit);
  }
  model->train(training);
  for (std::int64_t g = 0; g < groups; ++g) {
    score.answers.push_back(answers[g].item<std::int64_t>());
    score.right.push_back(right[g].item<std::int64_t>());
  }
  return score;
}

EvalResult evaluate_recall(models::LanguageModel& model, const RecallRequest& request, torch::Device device) {
  const auto start = std::chrono::steady_clock::now();
  const auto split = data::split_named(request.split);
  const auto rows = rows_of(request.data, request.length);
  const auto scored = [&](const data::RecallOptions& of) {
    return score_recall(model, of, split, request.rows, request.batch, request.bfloat16);
  };
  const auto score = scored(rows);
  Json groups = Json::array();
  std::string by;
  const auto add = [&](const char* what, std::int64_t number, double accuracy) {
    by += (by.empty() ? "" : ", ") + std::to_string(number) + " " + what + " " + figure("%.4f", accuracy);
    groups.push_back({{what, number}, {"accuracy", accuracy}});
  };
  if (rows.kind == "k-hop") {
    for (std::int64_t hops = 1; hops <= rows.hops; ++hops) add("hops", hops, score.accuracy(hops));
  } else {
    for (const std::int64_t share : {4, 2}) {  // shorter rows too, with as many queries
      auto fewer = rows;
      fewer.pairs = std::max<std::int64_t>(1, rows.pairs / share);
      if (fewer.pairs < rows.pairs) add("pairs", fewer.pairs, scored(fewer).accuracy());
    }
    add("pairs", rows.pairs, score.accuracy());
  }
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto nats = score.nats / static_cast<double>(score.all());
  const auto line = "accuracy " + figure("%.4f", score.accuracy()) + " (" + figure("%.4f", nats) + " nats) on " +
                    std::to_string(score.all()) + " answers of " + request.split + ", rows of " +
                    std::to_string(request.length) + "; " + by;
  const Json json{{"accuracy", score.accuracy()}, {"loss", nats},
                  {"answers", score.all()},       {"split", request.split},
                  {"length", request.length},     {"by", groups},
                  {"seconds", seconds},           {"memory", runtime::peak_memory(device)}};
  return {line, json.dump()};
}

}  // namespace contextpool::tasks
