#include "contextpool/tasks/translation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/words.h"
#include "contextpool/data/batch.h"
#include "contextpool/data/translation/number_names.h"
#include "contextpool/eval/bleu.h"
#include "contextpool/models/registry.h"
#include "contextpool/models/translator_family.h"
#include "contextpool/runtime/device.h"
#include "contextpool/tasks/trained_translator.h"
#include "tasks/text_looking.h"
#include "tasks/translation_data.h"
#include "tasks/translation_eval.h"

namespace contextpool::tasks {
namespace {

using Json = nlohmann::ordered_json;
using models::TranslatorOptions;

constexpr std::int64_t kNumberPieces = 150, kNumberLength = 64;  // of generated numbers
constexpr std::int64_t kPairLength = 32;

double size(std::int64_t n) { return static_cast<double>(n); }

template <typename Options>
Options typed(const OptionList& list) {
  Options options;
  assign_options(options, list);
  return options;
}

class TranslationKind : public TaskKind {
 public:
  std::vector<std::string> families() const override { return {models::kTranslatorFamily}; }
  std::string unit() const override { return "tokens"; }
  std::string summary() const override { return "Trains a translator on pairs of sentences."; }
  OptionList train_options() const override { return list_options(TranslationOptions{}); }
  std::vector<std::string> path_options() const override {
    return {"data", "target", "dev_source", "dev_target", "vocabulary", "source_vocabulary"};
  }
  std::vector<std::string> derived_options() const override {
    return {"vocabulary", "source_vocabulary", "begin", "end"};
  }
  std::vector<std::string> fixed_options() const override {
    return {"dev_share", "numbers", "vocabulary_size", "vocabulary_kind", "joint", "max_length"};
  }
  OptionList complete(OptionList model_options, const OptionList& options) const override;
  void check(const OptionList& model_options, const OptionList& options, std::int64_t length, std::int64_t batch,
             std::int64_t parts) const override;
  double least_activations(const OptionList& model_options, std::int64_t length, double batch,
                           bool bfloat16) const override;
  std::unique_ptr<Task> open(const models::Family& /*family*/, const OptionList& model_options,
                             const OptionList& options) const override {
    return std::make_unique<Translation>(typed<TranslatorOptions>(model_options), typed<TranslationOptions>(options));
  }
  OptionList eval_options() const override { return translation_eval_options(); }
  std::string eval_unit() const override { return "sentences"; }
  std::string option_without_model() const override { return "hypotheses"; }
  void check_eval(const EvalRequest& request) const override { check_translation_eval(request); }
  EvalResult evaluate(const EvalRequest& request) const override { return evaluate_translation(request); }
  std::string looks_at() const override { return "text"; }
  eval::Looking look(const LookRequest& request) const override { return look_at_source(request); }
  OptionList generated_data(OptionList options) const override {
    options.set("data", std::string("numbers-de"));
    options.set("vocabulary_size", kNumberPieces);
    options.set("max_length", kNumberLength);
    options.set("eval_sentences", std::int64_t{0});
    return options;
  }
  // Of a target token, in pairs of the length that the model's cost is given for: data have any.
  double flops_per_unit(const models::Family& family, const OptionList& model_options,
                        std::int64_t /*length*/) const override {
    return family.cost(model_options, kPairLength).flops / size(kPairLength);
  }
};

// What a vocabulary that is to be made will have; the data say the rest.
OptionList TranslationKind::complete(OptionList model_options, const OptionList& options) const {
  const auto pieces = options.get<std::int64_t>("vocabulary_size");
  model_options.set("vocabulary", pieces);
  model_options.set("source_vocabulary", options.get<bool>("joint") ? std::int64_t{0} : pieces);
  model_options.set("begin", data::kBegin);
  model_options.set("end", data::kEnd);
  return model_options;
}

void TranslationKind::check(const OptionList& model_options, const OptionList& options, std::int64_t /*length*/,
                            std::int64_t batch, std::int64_t parts) const {
  const auto model = typed<TranslatorOptions>(model_options);
  const auto o = typed<TranslationOptions>(options);
  check_word("contextpool", "vocabulary-kind", o.vocabulary_kind, {"bpe", "unigram"});
  TORCH_CHECK_VALUE(o.max_length >= 2, "contextpool: max-length is ", o.max_length, ", expected at least 2");
  TORCH_CHECK_VALUE(o.label_smoothing >= 0 && o.label_smoothing < 1, "contextpool: label-smoothing is ",
                    o.label_smoothing, ", expected 0 or more and less than 1");
  TORCH_CHECK_VALUE(o.dev_share >= 0 && o.dev_share < 1, "contextpool: dev-share is ", o.dev_share,
                    ", expected 0 or more and less than 1");
  TORCH_CHECK_VALUE(o.numbers >= 1 && o.numbers <= data::kLargestNumber, "contextpool: numbers is ", o.numbers,
                    ", expected 1 to ", data::kLargestNumber);
  TORCH_CHECK_VALUE(o.dev_target.empty() || !o.dev_source.empty(), "contextpool: dev-target is ", o.dev_target,
                    ", the translations of dev-source: give both");
  TORCH_CHECK_VALUE(!generated_language(o.data) || (o.target.empty() && o.dev_source.empty()), "contextpool: --data ",
                    o.data, " is generated, with its translations; leave --target and --dev-source out");
  TORCH_CHECK_VALUE(o.source_vocabulary.empty() || !o.vocabulary.empty(),
                    "contextpool: source-vocabulary is that of the source alone; name the target's with --vocabulary");
  TORCH_CHECK_VALUE(parts <= batch, "contextpool: accumulate is ", parts, ", but a batch has only ", batch, " tokens");
  TORCH_CHECK_VALUE(o.eval_sentences >= 0, "contextpool: eval-sentences is ", o.eval_sentences,
                    ", expected 0 (none) or more");
  TORCH_CHECK_VALUE(o.eval_beam >= 1 && o.eval_beam <= models::kWidestBeam, "contextpool: eval-beam is ", o.eval_beam,
                    ", expected 1 to ", models::kWidestBeam);
  TORCH_CHECK_VALUE(o.eval_batch >= 1, "contextpool: eval-batch is ", o.eval_batch, ", expected at least 1");
  const auto rows = parts == 1 ? 1 : 2 * parts;  // so that every micro-batch has a pair
  TORCH_CHECK_VALUE(batch / rows >= o.max_length, "contextpool: batch is ", batch, ", but of a translator it is the ",
                    "padded tokens of a step, and must have room for ", rows, " sentences of max-length ", o.max_length,
                    ": at least ", size(rows) * size(o.max_length));
  TORCH_CHECK_VALUE(model.positions != "learned" || o.max_length <= model.length, "contextpool: max-length is ",
                    o.max_length, ", but the model has learned positions for ", model.length,
                    " only; give it more with --context");
}

// In each layer the inputs of the norms, q, k, v, attention's output and the feed-forward branch before and after its
// activation; logits, their float32 copy and their gradient. Half of the tokens at least are no padding.
double TranslationKind::least_activations(const OptionList& model_options, std::int64_t /*length*/, double batch,
                                          bool bfloat16) const {
  constexpr double kFloat = 4, kHalf = 2;  // bytes
  const auto m = typed<TranslatorOptions>(model_options);
  const auto branch = 2 * size(m.feedforward);
  const auto layers = size(m.layers) * (6 * size(m.features) + branch) +
                      size(models::decoder_layers(m)) * (10 * size(m.features) + branch);
  const auto token = (bfloat16 ? kHalf : kFloat) * (layers + size(m.vocabulary)) + 2 * kFloat * size(m.vocabulary);
  return batch * token / 2;
}

}  // namespace

Translation::Translation(const TranslatorOptions& model, TranslationOptions options)
    : Task(task_of(models::find_family(models::kTranslatorFamily)), models::find_family(models::kTranslatorFamily),
           list_options(model), list_options(options)),
      options_(std::move(options)),
      data_(std::make_unique<TranslationData>(open_translation(options_))) {
  const auto& [source, target] = data_->vocabularies;
  set_model_option("vocabulary", target.size());
  set_model_option("source_vocabulary", source.bytes() == target.bytes() ? std::int64_t{0} : source.size());
  set_model_option("begin", data::kBegin);
  set_model_option("end", data::kEnd);
}

Translation::~Translation() = default;

void Translation::on_built() {
  translator_ = models::Translator(std::dynamic_pointer_cast<models::TranslatorImpl>(model()));
}

std::string Translation::data_identity() const {
  return Json{{"pairs", data_->train.size()},
              {"crc32c", data_->train.checksum()},
              {"vocabulary", data_->vocabularies.target.checksum()},
              {"source_vocabulary", data_->vocabularies.source.checksum()}}
      .dump();
}

void Translation::check_data(const std::string& trained_on, const std::string& checkpoint) const {
  const auto before = Json::parse(trained_on), now = Json::parse(data_identity());
  const auto& [source, target] = data_->vocabularies;
  for (const auto& [key, vocabulary] : {std::pair{"vocabulary", &target}, std::pair{"source_vocabulary", &source}}) {
    TORCH_CHECK_VALUE(before.at(key) == now.at(key), vocabulary->name(),
                      ": not the vocabulary of this run: ", checkpoint,
                      " was trained with another; name that one with --vocabulary, or start another run with this");
  }
  TORCH_CHECK_VALUE(before == now, data_->name, ": not the text of this run: it has ", data_->train.size(),
                    " pairs, and ", checkpoint, " was trained on ", before.at("pairs").get<std::int64_t>(),
                    before.at("pairs") == now.at("pairs") ? " others" : "",
                    "; name that text with --data and --target, or start another run with this one");
}

io::Metadata Translation::metadata(const StepPlace& /*place*/) const {
  return vocabulary_metadata(data_->vocabularies);
}

std::shared_ptr<const data::TokenBatches> Translation::batches(std::int64_t tokens, std::int64_t seed,
                                                               std::int64_t min_rows) const {
  const std::lock_guard lock(mutex_);
  auto& cached = batches_[{tokens, seed, min_rows}];
  if (!cached) {
    cached = std::make_shared<const data::TokenBatches>(
        data_->train.lengths(), data::TokenBatchOptions{.max_tokens = tokens, .seed = seed, .min_rows = min_rows});
  }
  return cached;
}

void Translation::check_stage(std::int64_t /*length*/, std::int64_t batch) const { batches(batch, 0, 1); }

std::int64_t Translation::steps_per_epoch(std::int64_t /*length*/, std::int64_t batch) const {
  return batches(batch, 0, 1)->per_epoch();
}

double Translation::units_per_step(std::int64_t length, std::int64_t batch) const {
  return size(data_->target_tokens) / size(steps_per_epoch(length, batch));
}

Batch Translation::batch(const StepPlace& place, Part part) const {
  const auto pairs = batches(place.batch, place.seed, part.count)->batch(place.step);
  const auto rows = data::part_of({0, static_cast<std::int64_t>(pairs.size())}, part.index, part.count);
  const auto here =
      std::span(pairs).subspan(static_cast<std::size_t>(rows.begin), static_cast<std::size_t>(rows.end - rows.begin));
  auto batch = data_->train.batch(here);
  std::int64_t tokens = 0;
  for (const auto i : here) tokens += data_->train.lengths()[static_cast<std::size_t>(i)].target;
  return {{std::move(batch.source), std::move(batch.target_input), std::move(batch.target)}, size(tokens), tokens};
}

torch::Tensor Translation::cross_entropy(const std::vector<torch::Tensor>& batch, double smoothing, bool bfloat16) {
  namespace F = torch::nn::functional;
  torch::Tensor logits;
  {
    const runtime::Autocast autocast(device(), bfloat16);
    logits = translator_->forward(batch[0], nn::Padding(batch[0].ne(data::kPad)), batch[1]);
  }
  return F::cross_entropy(
      logits.flatten(0, 1).to(torch::kFloat), batch[2].flatten(),
      F::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(data::kPad).label_smoothing(smoothing));
}

torch::Tensor Translation::loss(const std::vector<torch::Tensor>& batch, bool bfloat16) {
  return cross_entropy(batch, options_.label_smoothing, bfloat16);
}

std::vector<Figure> Translation::figures_of_loss(double /*loss*/) const { return {}; }

std::vector<std::string> Translation::take_notes() { return std::exchange(data_->notes, {}); }

double Translation::dev_loss(std::int64_t tokens, bool bfloat16) {
  const auto& pairs = data_->dev->pairs;
  const data::TokenBatches batches(pairs.lengths(), {.max_tokens = std::max(tokens, options_.max_length)});
  double sum = 0, count = 0;
  for (std::int64_t step = 0; step < batches.per_epoch(); ++step) {
    const auto batch = pairs.batch(batches.batch(step));
    const std::vector<torch::Tensor> on_device = {batch.source.to(device()), batch.target_input.to(device()),
                                                  batch.target.to(device())};
    sum += cross_entropy(on_device, /*smoothing=*/0, bfloat16).item<double>();
    count += batch.target.ne(data::kPad).sum().item<double>();
  }
  return sum / count;
}

Figure Translation::dev_quality(bool bfloat16) {
  const auto& text = data_->dev->text;
  std::vector<std::string_view> sources;
  eval::Sentences references, hypotheses;
  for (std::int64_t i = 0; i < std::min(text.size(), options_.eval_sentences); ++i) {
    sources.push_back(text.pair(i).source);
    references.emplace_back(text.pair(i).target);
  }
  TranslationRequest request;
  request.search.beam = options_.eval_beam;
  request.batch = options_.eval_batch;
  request.max_length = options_.max_length;
  request.bfloat16 = bfloat16;
  for (auto& found : translate_sentences(translator_, data_->vocabularies, sources, request)) {
    hypotheses.push_back(std::move(found.front().text));
  }
  if (!generated_language(options_.data)) return {"bleu", eval::Bleu().corpus(hypotheses, {references}).score};
  double equal = 0;
  for (std::size_t i = 0; i < hypotheses.size(); ++i) equal += hypotheses[i] == references[i] ? 1 : 0;
  return {"exact", 100 * equal / size(static_cast<std::int64_t>(hypotheses.size()))};
}

std::optional<Score> Translation::score_dev(const StepPlace& place, bool bfloat16) {
  if (!data_->dev) return std::nullopt;
  const torch::NoGradGuard no_grad;
  translator_->eval();
  Score score{{}, /*higher_is_better=*/options_.eval_sentences > 0, /*headline=*/0};
  if (options_.eval_sentences > 0) score.figures.push_back(dev_quality(bfloat16));
  score.figures.emplace_back("loss", dev_loss(place.batch, bfloat16));
  return score;
}

std::unique_ptr<TaskKind> translation() { return std::make_unique<TranslationKind>(); }

}  // namespace contextpool::tasks
