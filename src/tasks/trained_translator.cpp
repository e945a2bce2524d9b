#include "contextpool/tasks/trained_translator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/base64.h"
#include "contextpool/models/model_file.h"
#include "contextpool/models/translator_family.h"
#include "contextpool/runtime/device.h"

namespace contextpool::tasks {
namespace {

models::Translator load(const std::filesystem::path& file, torch::Device device) {
  return models::Translator(models::load_model_of<models::TranslatorImpl>(models::kTranslatorFamily, file, device));
}

data::Vocabulary vocabulary_at(const io::Metadata& metadata, const char* key, const std::string& file) {
  const auto found = metadata.find(key);
  TORCH_CHECK_VALUE(found != metadata.end(), file, ": its metadata has no \"", key,
                    "\": it was not written by `contextpool train`, and cannot translate text");
  const auto name = file + ": the vocabulary in \"" + key + "\"";
  return data::Vocabulary::from_bytes(from_base64(found->second, name), name);
}

std::string on_one_line(std::string text) {
  for (auto& c : text) c = c == '\n' || c == '\r' ? ' ' : c;
  return text;
}

}  // namespace

io::Metadata vocabulary_metadata(const data::VocabularyPair& vocabularies) {
  io::Metadata metadata = {{kVocabularyKey, to_base64(vocabularies.target.bytes())}};
  if (vocabularies.source.bytes() != vocabularies.target.bytes()) {
    metadata[kSourceVocabularyKey] = to_base64(vocabularies.source.bytes());
  }
  return metadata;
}

data::VocabularyPair vocabularies_of(const io::Metadata& metadata, const models::TranslatorOptions& model,
                                     const std::string& file) {
  const auto target = vocabulary_at(metadata, kVocabularyKey, file);
  const bool two = model.source_vocabulary > 0;
  const auto source = two ? vocabulary_at(metadata, kSourceVocabularyKey, file) : target;
  data::check_vocabulary(target, model.vocabulary, "the model");
  if (two) data::check_vocabulary(source, model.source_vocabulary, "the model's source");
  return {source, target};
}

std::vector<std::vector<TranslatedText>> translate_sentences(models::Translator& model,
                                                             const data::VocabularyPair& vocabularies,
                                                             const std::vector<std::string_view>& sentences,
                                                             const TranslationRequest& request) {
  TORCH_CHECK_VALUE(request.batch >= 1, "translate: batch is ", request.batch, ", expected at least 1");
  TORCH_CHECK_VALUE(request.max_length >= 2, "translate: max_length is ", request.max_length, ", expected at least 2");
  const auto& o = model->options();
  const auto longest =
      static_cast<std::size_t>(o.positions == "learned" ? std::min(request.max_length, o.length) : request.max_length);
  std::vector<std::vector<TranslatedText>> all(sentences.size());
  std::vector<std::vector<std::int64_t>> symbols(sentences.size());
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    symbols[i] = vocabularies.source.encode(sentences[i]);
    if (symbols[i].size() + 1 > longest) {
      symbols[i].resize(longest - 1);
      if (request.shortened) request.shortened(i);
    }
    if (symbols[i].empty()) {
      all[i] = {TranslatedText{}};
      continue;
    }
    symbols[i].push_back(data::kEnd);
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return symbols[a].size() > symbols[b].size(); });
  const auto batch = static_cast<std::size_t>(request.batch);
  const auto count = static_cast<std::int64_t>(order.size());
  const runtime::Autocast autocast(model->parameters().front().device(), request.bfloat16);
  for (std::size_t first = 0; first < order.size(); first += batch) {
    if (request.progress) request.progress(static_cast<std::int64_t>(first), count);
    std::vector<std::vector<std::int64_t>> sources;
    const auto end = std::min(first + batch, order.size());
    for (auto k = first; k < end; ++k) sources.push_back(std::move(symbols[order[k]]));
    const auto found = models::translate(model, sources, request.search);
    for (auto k = first; k < end; ++k) {
      for (const auto& hypothesis : found[k - first]) {
        all[order[k]].push_back({on_one_line(vocabularies.target.decode(hypothesis.tokens)), hypothesis.score});
      }
    }
  }
  return all;
}

TrainedTranslator::TrainedTranslator(const std::filesystem::path& file, torch::Device device)
    : model_(load(file, device)),
      vocabularies_(vocabularies_of(models::describe_model(file).metadata, model_->options(), file.string())) {}

}  // namespace contextpool::tasks
