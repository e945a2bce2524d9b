#include "data/translation/sentencepiece.h"

#include <c10/util/Exception.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cctype>
#include <unordered_map>

namespace contextpool::data {
namespace {

// SentencePiece's message without its place in the source: "Internal: src/trainer.cc(582) [...] what happened".
std::string reason(const sentencepiece::util::Status& status) {
  const std::string text = status.ToString();
  const auto at = text.rfind("] ");
  auto message = at == std::string::npos ? text : text.substr(at + 2);
  std::replace(message.begin(), message.end(), '\n', ' ');
  return message.empty() ? "no reason given" : message;
}

void require(const sentencepiece::util::Status& status, const std::string& name, const char* what) {
  TORCH_CHECK_VALUE(status.ok(), name, ": ", what, ": ", reason(status));
}

class SentencePiece : public Subwords {
 public:
  SentencePiece(const std::string& bytes, const std::string& name) : name_(name) {
    require(processor_.LoadFromSerializedProto(bytes), name, "is not a SentencePiece vocabulary");
  }

  std::int64_t size() const override { return processor_.GetPieceSize(); }

  std::vector<std::int64_t> encode(std::string_view sentence) const override {
    std::vector<int> symbols;
    require(processor_.Encode({sentence.data(), sentence.size()}, &symbols), name_, "cannot encode a sentence");
    return {symbols.begin(), symbols.end()};
  }

  std::string decode(const std::vector<int>& symbols) const override {
    std::string text;
    require(processor_.Decode(symbols, &text), name_, "cannot decode a sentence");
    return text;
  }

  std::string piece(std::int64_t symbol) const override { return processor_.IdToPiece(static_cast<int>(symbol)); }

  std::vector<std::int64_t> special() const override {
    return {processor_.pad_id(), processor_.eos_id(), processor_.bos_id(), processor_.unk_id()};
  }

 private:
  std::string name_;
  sentencepiece::SentencePieceProcessor processor_;
};

class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(std::span<const std::string_view> sentences) : sentences_(sentences) { fetch(); }
  bool done() const override { return at_ >= sentences_.size(); }
  void Next() override {
    ++at_;
    fetch();
  }
  const std::string& value() const override { return value_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  void fetch() {
    if (!done()) value_ = sentences_[at_];
  }

  std::span<const std::string_view> sentences_;
  std::size_t at_ = 0;
  std::string value_;
};

std::unordered_map<std::string, std::string> flags(const VocabularyOptions& options) {
  return {
      {"model_type", options.type},
      {"vocab_size", std::to_string(options.size)},
      {"character_coverage", std::to_string(options.coverage)},
      {"byte_fallback", options.byte_fallback ? "true" : "false"},
      {"normalization_rule_name", "nmt_nfkc"},
      {"pad_id", std::to_string(kPad)},
      {"eos_id", std::to_string(kEnd)},
      {"bos_id", std::to_string(kBegin)},
      {"unk_id", std::to_string(kUnknown)},
      {"num_threads", "4"},                // whatever the machine has: sums of unigram depend on it
      {"max_sentence_length", "1000000"},  // bytes; the default leaves long ones out
      {"minloglevel", "3"},                // a library does not print
  };
}

}  // namespace

bool has_sentencepiece() { return true; }

std::shared_ptr<const Subwords> load_subwords(const std::string& bytes, const std::string& name) {
  return std::make_shared<const SentencePiece>(bytes, name);
}

std::string train_subwords(std::span<const std::string_view> sentences, const VocabularyOptions& options,
                           const std::string& name) {
  Sentences iterator(sentences);
  std::string bytes;
  require(sentencepiece::SentencePieceTrainer::Train(flags(options), &iterator, &bytes), name,
          ("cannot make a vocabulary of " + std::to_string(options.size) + " pieces").c_str());
  return bytes;
}

}  // namespace contextpool::data
