#include "tasks/translation_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/words.h"
#include "contextpool/data/permutation.h"
#include "contextpool/data/translation/number_names.h"

namespace contextpool::tasks {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostHeldOut = 3000;
constexpr std::int64_t kNumbersSeed = 1, kHeldOutSeed = 1;
constexpr std::int64_t kDevNumbers = 1000;

struct Texts {
  data::ParallelText train;
  std::optional<data::ParallelText> dev;
};

data::ParallelText read(const std::string& source, const std::string& target) {
  return target.empty() ? data::ParallelText::from_tsv(source) : data::ParallelText::from_files(source, target);
}

// Pair permuted(i) of the text is dev for i below the count: the same pairs in every run.
Texts hold_out(const data::ParallelText& all, double share) {
  const auto wanted = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(all.size())));
  const auto count = std::min(wanted, kMostHeldOut);
  TORCH_CHECK_VALUE(count < all.size(), all.name(), ": has only ", all.size(),
                    " pairs, of which none would be left to train on; name dev-source, or set dev-share to 0");
  std::vector<std::pair<std::string, std::string>> train, dev;
  for (std::int64_t i = 0; i < all.size(); ++i) {
    const auto pair = all.pair(data::permuted(i, all.size(), kHeldOutSeed));
    (i < count ? dev : train).emplace_back(pair.source, pair.target);
  }
  const data::ParallelOptions any{.max_characters = 0};  // they were checked once
  return {data::ParallelText::from_pairs(std::move(train), all.name(), any),
          data::ParallelText::from_pairs(std::move(dev), all.name() + " (held out)", any)};
}

Texts read_texts(const TranslationOptions& o, std::vector<std::string>& notes) {
  const auto say = [&](const data::ParallelText& text) { notes.push_back(text.name() + ": " + text.report().text()); };
  if (const auto language = generated_language(o.data)) {
    return {data::number_pairs(*language, data::Split::train, o.numbers, kNumbersSeed),
            data::number_pairs(*language, data::Split::dev, kDevNumbers, kNumbersSeed)};
  }
  const auto all = read(o.data, o.target);
  say(all);
  if (!o.dev_source.empty()) {
    auto dev = read(o.dev_source, o.dev_target);
    say(dev);
    return {all, std::move(dev)};
  }
  if (o.dev_share == 0) return {all, std::nullopt};
  return hold_out(all, o.dev_share);
}

data::VocabularyPair vocabularies_for(const TranslationOptions& o, const data::ParallelText& text) {
  if (!o.vocabulary.empty()) {
    const auto target = data::Vocabulary::load(o.vocabulary);
    return {o.source_vocabulary.empty() ? target : data::Vocabulary::load(o.source_vocabulary), target};
  }
  return data::train_vocabularies(text, {.type = o.vocabulary_kind, .size = o.vocabulary_size}, o.joint);
}

}  // namespace

std::optional<std::string> generated_language(const std::string& data) {
  const auto word = fs::path(data).filename().string();
  for (const auto& language : data::number_languages()) {
    if (language != "en" && word == "numbers-" + language && !fs::exists(data)) return language;
  }
  return std::nullopt;
}

TranslationData open_translation(const TranslationOptions& options) {
  std::vector<std::string> notes;
  auto texts = read_texts(options, notes);
  const auto vocabularies = vocabularies_for(options, texts.train);
  data::TokenizedPairs train(texts.train, vocabularies.source, vocabularies.target, options.max_length);
  if (train.size() < texts.train.size()) {
    notes.push_back(texts.train.name() + ": " + std::to_string(texts.train.size() - train.size()) +
                    " more pairs have a sentence of more than " + std::to_string(options.max_length) +
                    " tokens, or nothing but spaces, and are not trained on");
  }
  std::optional<DevText> dev;
  if (texts.dev) {
    data::TokenizedPairs pairs(*texts.dev, vocabularies.source, vocabularies.target, options.max_length);
    dev.emplace(DevText{std::move(*texts.dev), std::move(pairs)});
  }
  TranslationData all{vocabularies, std::move(train), std::move(dev), texts.train.name(), 0, std::move(notes)};
  for (const auto& length : all.train.lengths()) all.target_tokens += length.target;
  return all;
}

}  // namespace contextpool::tasks
