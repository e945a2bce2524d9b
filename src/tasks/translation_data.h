// The texts and vocabularies of a translation task, read and checked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "contextpool/data/translation/tokenized_pairs.h"
#include "contextpool/tasks/translation.h"

namespace contextpool::tasks {

struct DevText {
  data::ParallelText text;
  data::TokenizedPairs pairs;
};

struct TranslationData {
  data::VocabularyPair vocabularies;
  data::TokenizedPairs train;
  std::optional<DevText> dev;
  std::string name;                // of the training text
  std::int64_t target_tokens = 0;  // of an epoch
  std::vector<std::string> notes;  // for the user
};

TranslationData open_translation(const TranslationOptions& options);

// "de" of "numbers-de", which may have become a path; nothing if the data are a file.
std::optional<std::string> generated_language(const std::string& data);

}  // namespace contextpool::tasks
