// Language modelling: the next symbol of a text. A batch is rows of the training split at random places; the loss is
// the mean cross-entropy in nats; the score is bits per character of the dev text by overlapping windows
// (eval/windows.h).
//
// With the words recall and k-hop for data, rows are generated (data/recall.h): `length` symbols, 2 for each of `pairs`
// pairs and 2 for each query. The loss is that of the answers alone, and the score the share of them that are right.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>

#include "contextpool/data/text.h"
#include "contextpool/models/language_models.h"
#include "contextpool/tasks/registry.h"

namespace contextpool::tasks {

struct LanguageModellingOptions {
  std::string data;
  std::string layout = "bytes";
  std::int64_t eval_tokens = 100'000;  // of the dev text, scored before each checkpoint; 0: none
  std::int64_t eval_batch = 8;
  std::int64_t symbols = 64, pairs = 16, hops = 2;  // of generated rows
};

// See base/options.h.
template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, LanguageModellingOptions>
void for_each_option(Options& options, F f) {
  f("data", options.data, "text file; or the word recall or k-hop, for generated rows");
  f("layout", options.layout, "of the file: bytes, letters, enwik8 or text8");
  f("eval_tokens", options.eval_tokens, "of the dev text, or of generated rows, to score; 0: none");
  f("eval_batch", options.eval_batch, "windows or rows at once when scoring");
  f("symbols", options.symbols, "recall, k-hop: size of the vocabulary");
  f("pairs", options.pairs, "recall, k-hop: pairs in a row; queries fill the rest of it");
  f("hops", options.hops, "k-hop: a query asks for 1 to so many");
}

// What all tasks of language models share.
class LanguageModelTask : public Task {
 public:
  models::LanguageModel language_model() const { return language_model_; }
  io::Metadata metadata(const StepPlace& place) const override;
  double units_per_step(std::int64_t length, std::int64_t batch) const override;
  bool replayable() const override;
  torch::Tensor regularizer() override;  // of adaptive spans
  void after_step() override;

 protected:
  using Task::Task;
  torch::Tensor logits(const torch::Tensor& tokens, bool bfloat16);
  // Of each layer with ContextPool, on tokens [B, N].
  std::vector<nn::WindowStatistics> windows_on(const torch::Tensor& tokens, bool bfloat16);

 private:
  void on_built() override;
  models::LanguageModel language_model_{nullptr};
};

class LanguageModelling : public LanguageModelTask {
 public:
  // The model's vocabulary follows from the layout.
  LanguageModelling(const models::LanguageModelOptions& model, LanguageModellingOptions options);

  std::string data_identity() const override;
  void check_data(const std::string& trained_on, const std::string& checkpoint) const override;
  void check_stage(std::int64_t length, std::int64_t batch) const override;
  Batch batch(const StepPlace& place, Part part) const override;
  torch::Tensor loss(const std::vector<torch::Tensor>& batch, bool bfloat16) override;
  std::vector<Figure> figures_of_loss(double loss) const override;
  std::optional<Score> score_dev(const StepPlace& place, bool bfloat16) override;
  std::vector<nn::WindowStatistics> windows(const StepPlace& place, bool bfloat16) override;

 private:
  LanguageModellingOptions options_;
  data::Text text_;
};

std::unique_ptr<TaskKind> language_modelling();

}  // namespace contextpool::tasks
