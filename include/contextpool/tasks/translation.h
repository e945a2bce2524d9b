// Translation: sentences of one language into another. A batch is pairs of like lengths of an epoch's permutation
// (data/translation/token_batches.h); its size is in padded tokens of the longer side. With eps the label smoothing, V
// the symbols of the target and y the real ones of a batch, its end symbols included, the loss of a step is the mean of
//
//   -(1 - eps) log p(y) - eps/V sum_v log p(v)
//
// The score is BLEU of translations of dev sentences, and the plain cross-entropy of the dev text in nats a token. Of
// generated numbers, whose names may be one word and thus have no BLEU, it is the percentage of exact translations.
//
// Data by their name:
//   a file and `target`          as many lines in both; or one file of two columns, separated by a tab. Plain or gzip
//   numbers-de, numbers-fr       generated, no file: numbers spelled out, from English
//   (data/translation/number_names.h)
// The vocabulary is a SentencePiece model, given or made from the training text, and is kept in the model's file.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "contextpool/data/translation/token_batches.h"
#include "contextpool/models/translator.h"
#include "contextpool/tasks/registry.h"

namespace contextpool::tasks {

struct TranslationOptions {
  std::string data, target, dev_source, dev_target;
  double dev_share = 0.01;
  std::int64_t numbers = 50'000;
  std::string vocabulary, source_vocabulary;
  std::int64_t vocabulary_size = 10'000;
  std::string vocabulary_kind = "bpe";
  bool joint = true;
  double label_smoothing = 0.1;
  std::int64_t max_length = 256;
  std::int64_t eval_sentences = 200;
  std::int64_t eval_beam = 1;
  std::int64_t eval_batch = 64;
};

// See base/options.h.
template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, TranslationOptions>
void for_each_option(Options& options, F f) {
  f("data", options.data,
    "source sentences, one a line; or a file of two columns, separated by a tab; or the word numbers-de or numbers-fr, "
    "for generated ones");
  f("target", options.target, "their translations, line by line; none where --data has two columns or is generated");
  f("dev_source", options.dev_source, "source sentences to score by, or a file of two columns; none: see dev-share");
  f("dev_target", options.dev_target, "their translations");
  f("dev_share", options.dev_share, "of the pairs to hold out for scoring where there is no dev-source, 3000 at most");
  f("numbers", options.numbers, "generated pairs to train on");
  f("vocabulary", options.vocabulary, "SentencePiece model; none: one is made from the training text");
  f("source_vocabulary", options.source_vocabulary, "that of the source, where it has its own");
  f("vocabulary_size", options.vocabulary_size, "pieces of a vocabulary that is made");
  f("vocabulary_kind", options.vocabulary_kind, "of a vocabulary that is made: bpe or unigram");
  f("joint", options.joint, "whether one vocabulary is made for both languages; false: one for each");
  f("label_smoothing", options.label_smoothing, "share of the target that all symbols get");
  f("max_length", options.max_length, "tokens of a sentence, its end included; pairs with a longer one are dropped");
  f("eval_sentences", options.eval_sentences, "dev sentences to translate for BLEU; 0: none, and the loss decides");
  f("eval_beam", options.eval_beam, "hypotheses of a dev sentence; 1: greedy decoding");
  f("eval_batch", options.eval_batch, "dev sentences at once");
}

struct TranslationData;

class Translation : public Task {
 public:
  // The model's vocabularies, begin and end follow from the data.
  Translation(const models::TranslatorOptions& model, TranslationOptions options);
  ~Translation() override;

  models::Translator translator() const { return translator_; }

  std::string data_identity() const override;
  void check_data(const std::string& trained_on, const std::string& checkpoint) const override;
  io::Metadata metadata(const StepPlace& place) const override;
  void check_stage(std::int64_t length, std::int64_t batch) const override;
  std::int64_t steps_per_epoch(std::int64_t length, std::int64_t batch) const override;
  double units_per_step(std::int64_t length, std::int64_t batch) const override;
  Batch batch(const StepPlace& place, Part part) const override;
  torch::Tensor loss(const std::vector<torch::Tensor>& batch, bool bfloat16) override;
  std::vector<Figure> figures_of_loss(double loss) const override;
  std::vector<std::string> take_notes() override;
  std::optional<Score> score_dev(const StepPlace& place, bool bfloat16) override;

 private:
  void on_built() override;
  // A pure function of its arguments, kept once made.
  std::shared_ptr<const data::TokenBatches> batches(std::int64_t tokens, std::int64_t seed,
                                                    std::int64_t min_rows) const;
  torch::Tensor cross_entropy(const std::vector<torch::Tensor>& batch, double smoothing, bool bfloat16);
  double dev_loss(std::int64_t tokens, bool bfloat16);
  Figure dev_quality(bool bfloat16);

  TranslationOptions options_;
  std::unique_ptr<TranslationData> data_;
  models::Translator translator_{nullptr};
  mutable std::mutex mutex_;
  mutable std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::shared_ptr<const data::TokenBatches>>
      batches_;
};

std::unique_ptr<TaskKind> translation();

}  // namespace contextpool::tasks
