// A trained translator, from one file: the weights, and in its metadata the vocabularies, so that nothing else is
// needed to translate. What `contextpool translate` and `contextpool eval` use.
//
//   contextpool.vocabulary          base64 of the SentencePiece model of both languages, or of the target's
//   contextpool.source_vocabulary   that of the source, where it has its own
//
// The numbers of padding, end, begin and unknown are those of data/translation/vocabulary.h in every file.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "contextpool/data/translation/vocabulary.h"
#include "contextpool/io/safetensors.h"
#include "contextpool/models/translate.h"

namespace contextpool::tasks {

constexpr const char* kVocabularyKey = "contextpool.vocabulary";
constexpr const char* kSourceVocabularyKey = "contextpool.source_vocabulary";

io::Metadata vocabulary_metadata(const data::VocabularyPair& vocabularies);
// The vocabularies of a model's file; throws, naming the file, if it has none or they do not fit the model's options.
data::VocabularyPair vocabularies_of(const io::Metadata& metadata, const models::TranslatorOptions& model,
                                     const std::string& file);

struct TranslatedText {
  std::string text;
  double score = 0;  // log-probability over the length penalty
};

struct TranslationRequest {
  models::BeamSearchOptions search = {};
  std::int64_t batch = 64;        // sentences at once
  std::int64_t max_length = 512;  // tokens of a source; the rest of a longer one is not read
  bool bfloat16 = false;
  std::function<void(std::int64_t done, std::int64_t all)> progress = {};  // may be empty
  std::function<void(std::size_t sentence)> shortened = {};  // called for each source of more tokens than max_length
};

// Translates sentences with a model and its vocabularies, in batches of like lengths; of each the n_best, best first,
// in the order of the sentences. A sentence without a symbol has one empty translation with the score 0. A translation
// never holds a line break.
std::vector<std::vector<TranslatedText>> translate_sentences(models::Translator& model,
                                                             const data::VocabularyPair& vocabularies,
                                                             const std::vector<std::string_view>& sentences,
                                                             const TranslationRequest& request);

class TrainedTranslator {
 public:
  // Throws if the file is not that of a translator with its vocabularies.
  TrainedTranslator(const std::filesystem::path& file, torch::Device device);

  models::Translator& model() { return model_; }
  const data::VocabularyPair& vocabularies() const { return vocabularies_; }
  std::vector<std::vector<TranslatedText>> translate(const std::vector<std::string_view>& sentences,
                                                     const TranslationRequest& request) {
    return translate_sentences(model_, vocabularies_, sentences, request);
  }

 private:
  models::Translator model_;
  data::VocabularyPair vocabularies_;
};

}  // namespace contextpool::tasks
