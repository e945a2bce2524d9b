#include "contextpool/tasks/language_modelling.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "contextpool/data/batch.h"
#include "contextpool/data/noise.h"
#include "contextpool/eval/windows.h"
#include "contextpool/models/registry.h"
#include "contextpool/ops/cross_entropy.h"
#include "contextpool/runtime/device.h"
#include "tasks/language_model_eval.h"
#include "tasks/recall.h"
#include "tasks/text_looking.h"

namespace contextpool::tasks {
namespace {

using Json = nlohmann::ordered_json;
using models::LanguageModelOptions;

LanguageModelOptions with_vocabulary(LanguageModelOptions model, const LanguageModellingOptions& options) {
  model.vocabulary = data::vocabulary_of(options.layout);
  return model;
}

bool is_generated(const OptionList& options) { return is_recall(options.get<std::string>("data")); }

constexpr const char* kFamily = "language_model";

double size(std::int64_t n) { return static_cast<double>(n); }

template <typename Options>
Options typed(const OptionList& list) {
  Options options;
  assign_options(options, list);
  return options;
}

class LanguageModellingKind : public TaskKind {
 public:
  std::vector<std::string> families() const override { return {kFamily}; }
  std::string unit() const override { return "tokens"; }
  std::string summary() const override {
    return "Trains a language model on the symbols of a text, or on generated rows.";
  }
  OptionList train_options() const override { return list_options(LanguageModellingOptions{}); }
  std::vector<std::string> derived_options() const override { return {"vocabulary"}; }
  std::vector<std::string> fixed_options() const override { return {"layout"}; }
  OptionList complete(OptionList model_options, const OptionList& options) const override {
    const auto& layout = options.get<std::string>("layout");
    const auto symbols = is_generated(options) ? options.get<std::int64_t>("symbols") : data::vocabulary_of(layout);
    model_options.set("vocabulary", symbols);
    return model_options;
  }
  void check(const OptionList& model_options, const OptionList& options, std::int64_t length, std::int64_t batch,
             std::int64_t parts) const override;
  double least_activations(const OptionList& model_options, std::int64_t length, double batch,
                           bool bfloat16) const override;
  std::unique_ptr<Task> open(const models::Family& family, const OptionList& model_options,
                             const OptionList& options) const override {
    if (is_generated(options)) {
      return std::make_unique<Recall>(*this, family, model_options, typed<LanguageModellingOptions>(options));
    }
    return std::make_unique<LanguageModelling>(typed<LanguageModelOptions>(model_options),
                                               typed<LanguageModellingOptions>(options));
  }
  OptionList generated_data(OptionList options) const override {
    options.set("data", std::string(data::kNoise));
    options.set("eval_tokens", std::int64_t{0});
    return options;
  }
  OptionList eval_options() const override { return language_model_eval_options(); }
  void check_eval(const EvalRequest& request) const override { check_language_model_eval(request); }
  EvalResult evaluate(const EvalRequest& request) const override { return evaluate_language_model(request); }
  std::string looks_at() const override { return "text"; }
  eval::Looking look(const LookRequest& request) const override { return look_at_text(request); }
};

void LanguageModellingKind::check(const OptionList& model_options, const OptionList& options, std::int64_t length,
                                  std::int64_t batch, std::int64_t parts) const {
  const auto model = typed<LanguageModelOptions>(model_options);
  const auto task = typed<LanguageModellingOptions>(options);
  TORCH_CHECK_VALUE(task.eval_tokens >= 0, "contextpool: eval-tokens is ", task.eval_tokens, ", expected at least 0");
  TORCH_CHECK_VALUE(task.eval_batch >= 1, "contextpool: eval-batch is ", task.eval_batch, ", expected at least 1");
  TORCH_CHECK_VALUE(parts <= batch, "contextpool: accumulate is ", parts, ", but a batch has only ", batch, " rows");
  TORCH_CHECK_VALUE(model.positions != "learned" || length <= model.length, "contextpool: rows of ", length,
                    " tokens, but the model has learned positions for ", model.length,
                    " only; give it more with --context");
  if (is_generated(options)) data::validate(rows_of(task, length));
}

// In each layer the inputs of both norms, q, k, v, attention's output and the feed-forward branch before and after its
// activation; at the end logits, their float32 copy and their gradient.
double LanguageModellingKind::least_activations(const OptionList& model_options, std::int64_t length, double batch,
                                                bool bfloat16) const {
  constexpr double kFloat = 4, kHalf = 2;  // bytes
  const auto m = typed<LanguageModelOptions>(model_options);
  const auto layer = 6 * size(m.features) + 2 * size(m.feedforward);
  const auto token =
      (bfloat16 ? kHalf : kFloat) * (size(m.layers) * layer + size(m.vocabulary)) + 2 * kFloat * size(m.vocabulary);
  return batch * size(length) * token;
}

}  // namespace

LanguageModelling::LanguageModelling(const LanguageModelOptions& model, LanguageModellingOptions options)
    : LanguageModelTask(task_of(models::find_family(kFamily)), models::find_family(kFamily),
                        list_options(with_vocabulary(model, options)), list_options(options)),
      options_(std::move(options)),
      text_(options_.data, options_.layout) {
  if (options_.eval_tokens > 0) data::check_window(text_, data::Split::dev, 1);
}

void LanguageModelTask::on_built() {
  language_model_ = models::LanguageModel(std::dynamic_pointer_cast<models::LanguageModelImpl>(model()));
}

io::Metadata LanguageModelTask::metadata(const StepPlace& place) const {
  return {{kTrainedLengthKey, std::to_string(place.length)}};
}

double LanguageModelTask::units_per_step(std::int64_t length, std::int64_t batch) const {
  return size(length) * size(batch);
}

torch::Tensor LanguageModelTask::logits(const torch::Tensor& tokens, bool bfloat16) {
  const runtime::Autocast autocast(device(), bfloat16);
  return language_model_->forward(tokens);
}

// Adaptive spans say which part of a row is computed.
bool LanguageModelTask::replayable() const { return model_options().get<std::string>("attention") != "adaptive_span"; }

torch::Tensor LanguageModelTask::regularizer() { return language_model_->span_loss(); }

void LanguageModelTask::after_step() { language_model_->clamp_spans(); }

std::vector<nn::WindowStatistics> LanguageModelTask::windows_on(const torch::Tensor& tokens, bool bfloat16) {
  const torch::NoGradGuard no_grad;
  language_model_->eval();
  const runtime::Autocast autocast(device(), bfloat16);
  const auto predicted = language_model_->windows(tokens.to(device()));
  std::vector<nn::WindowStatistics> all;
  for (std::size_t layer = 0; layer < predicted.size(); ++layer) {
    const auto& pool = language_model_->blocks()[layer]->options().pool;
    if (const auto statistics = nn::window_statistics(pool, predicted[layer])) all.push_back(*statistics);
  }
  return all;
}

std::string LanguageModelling::data_identity() const {
  return Json{{"bytes", text_.size(data::Split::all)}, {"crc32c", text_.checksum()}}.dump();
}

void LanguageModelling::check_data(const std::string& trained_on, const std::string& checkpoint) const {
  const auto before = Json::parse(trained_on);
  const auto now = text_.size(data::Split::all), then = before.at("bytes").get<std::int64_t>();
  const bool same = before == Json::parse(data_identity());
  TORCH_CHECK_VALUE(same, text_.path(), ": not the text of this run: it has ", now, " bytes, and ", checkpoint,
                    " was trained on ", then == now ? "others" : std::to_string(then),
                    now > then ? " (it has grown)" : "", now < then ? " (it has shrunk)" : "",
                    now == then ? " (the checksum differs)" : "",
                    "; name that text with --data FILE, or start another run with this one");
}

void LanguageModelling::check_stage(std::int64_t length, std::int64_t /*batch*/) const {
  data::check_window(text_, data::Split::train, length);
}

Batch LanguageModelling::batch(const StepPlace& place, Part part) const {
  const auto rows = data::part_of({0, place.batch}, part.index, part.count);
  auto batch = data::make_batch(text_, data::Split::train, place.length, place.seed, place.step, rows);
  const auto tokens = (rows.end - rows.begin) * place.length;
  return {{std::move(batch.input), std::move(batch.target)}, size(tokens), tokens};
}

torch::Tensor LanguageModelling::loss(const std::vector<torch::Tensor>& batch, bool bfloat16) {
  const auto predicted = logits(batch[0], bfloat16);
  // On CUDA, where each pass over memory counts, without a float32 copy of the logits.
  if (predicted.is_cuda()) return contextpool::cross_entropy(predicted.flatten(0, 1), batch[1].flatten()).sum();
  return torch::nn::functional::cross_entropy(predicted.flatten(0, 1).to(torch::kFloat), batch[1].flatten(),
                                              torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

std::vector<Figure> LanguageModelling::figures_of_loss(double loss) const {
  return {{"bpc", loss / std::numbers::ln2}};
}

std::optional<Score> LanguageModelling::score_dev(const StepPlace& place, bool bfloat16) {
  if (options_.eval_tokens == 0) return std::nullopt;
  auto model = language_model();
  const auto score = eval::evaluate(model, text_, data::Split::dev,
                                    {.window = place.length,
                                     .step = std::max<std::int64_t>(1, place.length / 2),
                                     .batch = options_.eval_batch,
                                     .tokens = options_.eval_tokens,
                                     .bfloat16 = bfloat16});
  return Score{{{"loss", score.nats}, {"bpc", score.bits()}}, /*higher_is_better=*/false, /*headline=*/1};
}

std::vector<nn::WindowStatistics> LanguageModelling::windows(const StepPlace& place, bool bfloat16) {
  const auto count = std::min(place.length, text_.size(data::Split::dev));
  return windows_on(text_.symbols(data::Split::dev, 0, count).unsqueeze(0), bfloat16);
}

std::unique_ptr<TaskKind> language_modelling() { return std::make_unique<LanguageModellingKind>(); }

}  // namespace contextpool::tasks
