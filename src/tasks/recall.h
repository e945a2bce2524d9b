// Rows of recall and k-hop (data/recall.h) as a task of language models: the loss of the answers alone, and the share
// of them that are right, on rows from other random streams.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "contextpool/data/recall.h"
#include "contextpool/tasks/language_modelling.h"

namespace contextpool::tasks {

// Whether these are no file but a word for generated rows.
bool is_recall(const std::string& data);

// Rows of `length` symbols; throws where no query fits beside the pairs.
data::RecallOptions rows_of(const LanguageModellingOptions& options, std::int64_t length);

class Recall : public LanguageModelTask {
 public:
  Recall(const TaskKind& kind, const models::Family& family, OptionList model, LanguageModellingOptions options);

  std::string data_identity() const override;
  void check_data(const std::string& trained_on, const std::string& checkpoint) const override;
  Batch batch(const StepPlace& place, Part part) const override;
  torch::Tensor loss(const std::vector<torch::Tensor>& batch, bool bfloat16) override;
  std::optional<Score> score_dev(const StepPlace& place, bool bfloat16) override;
  std::vector<nn::WindowStatistics> windows(const StepPlace& place, bool bfloat16) override;

 private:
  LanguageModellingOptions options_;
};

// Answers that were asked for and those that were right, by the number of hops asked for, from 1; of recall one number.
struct RecallScore {
  std::vector<std::int64_t> answers, right;
  double nats = 0;  // of all answers together

  std::int64_t all() const;
  double accuracy() const;
  double accuracy(std::size_t hops) const;
};

RecallScore score_recall(models::LanguageModel& model, const data::RecallOptions& rows, data::Split split,
                         std::int64_t count, std::int64_t batch, bool bfloat16);

// `contextpool eval`: accuracy by the number of pairs, or of hops.
struct RecallRequest {
  LanguageModellingOptions data;  // symbols are the model's
  std::string split;
  std::int64_t length = 0, rows = 0, batch = 0;
  bool bfloat16 = false;
};
EvalResult evaluate_recall(models::LanguageModel& model, const RecallRequest& request, torch::Device device);

}  // namespace contextpool::tasks
