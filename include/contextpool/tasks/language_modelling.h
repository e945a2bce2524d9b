// Language modelling: the next symbol of a text. A batch is rows of the training split at random places; the loss is
// the mean cross-entropy in nats; the score is bits per character of the dev text by overlapping windows
// (eval/windows.h).
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
};

// See base/options.h.
template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, LanguageModellingOptions>
void for_each_option(Options& options, F f) {
  f("data", options.data, "text file");
  f("layout", options.layout, "of the file: bytes, letters, enwik8 or text8");
  f("eval_tokens", options.eval_tokens, "of the dev text to score; 0: none");
  f("eval_batch", options.eval_batch, "windows at once when scoring");
}

class LanguageModelling : public Task {
 public:
  // The model's vocabulary follows from the layout.
  LanguageModelling(const models::LanguageModelOptions& model, LanguageModellingOptions options);

  models::LanguageModel language_model() const { return language_model_; }

  std::string data_identity() const override;
  void check_data(const std::string& trained_on, const std::string& checkpoint) const override;
  io::Metadata metadata(const StepPlace& place) const override;
  void check_stage(std::int64_t length, std::int64_t batch) const override;
  double units_per_step(std::int64_t length, std::int64_t batch) const override;
  Batch batch(const StepPlace& place, Part part) const override;
  torch::Tensor loss(const std::vector<torch::Tensor>& batch, bool bfloat16) override;
  torch::Tensor regularizer() override;  // of adaptive spans
  void after_step() override;
  std::vector<Figure> figures_of_loss(double loss) const override;
  std::optional<Score> score_dev(const StepPlace& place, bool bfloat16) override;
  std::vector<nn::WindowStatistics> windows(const StepPlace& place, bool bfloat16) override;

 private:
  void on_built() override;

  LanguageModellingOptions options_;
  data::Text text_;
  models::LanguageModel language_model_{nullptr};
};

std::unique_ptr<TaskKind> language_modelling();

}  // namespace contextpool::tasks
