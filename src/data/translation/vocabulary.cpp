#include "contextpool/data/translation/vocabulary.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <limits>

#include "base/words.h"
#include "contextpool/data/translation/utf8.h"
#include "contextpool/io/crc32c.h"
#include "contextpool/io/files.h"
#include "data/translation/sentencepiece.h"

namespace contextpool::data {
namespace {

constexpr std::int64_t kSpecial = 4, kBytes = 256;
constexpr std::int64_t kMostPieces = 10'000'000;

}  // namespace

void validate(const VocabularyOptions& options) {
  check_word("contextpool: vocabulary", "type", options.type, {"bpe", "unigram"});
  const auto least = kSpecial + 1 + (options.byte_fallback ? kBytes : 0);
  TORCH_CHECK_VALUE(options.size >= least && options.size <= kMostPieces, "contextpool: a vocabulary of ", options.size,
                    " pieces; expected ", least, " to ", kMostPieces);
  TORCH_CHECK_VALUE(options.coverage > 0 && options.coverage <= 1, "contextpool: a vocabulary with character coverage ",
                    options.coverage, "; expected a share above 0 and up to 1");
}

Vocabulary::Vocabulary(std::shared_ptr<const std::string> bytes, std::string name)
    : bytes_(std::move(bytes)),
      subwords_(load_subwords(*bytes_, name)),
      name_(std::move(name)),
      size_(subwords_->size()) {
  const auto special = subwords_->special();
  TORCH_CHECK_VALUE((special == std::vector<std::int64_t>{kPad, kEnd, kBegin, kUnknown}), name_,
                    ": has the symbols pad, end, begin and unknown at ", c10::IntArrayRef(special), ", expected [",
                    kPad, ", ", kEnd, ", ", kBegin, ", ", kUnknown,
                    "]; with spm_train: --pad_id=0 --eos_id=1 --bos_id=2 --unk_id=3");
}

Vocabulary Vocabulary::train(std::span<const std::string_view> sentences, const VocabularyOptions& options,
                             const std::string& name) {
  validate(options);
  TORCH_CHECK_VALUE(!sentences.empty(), name, ": no sentences to make a vocabulary from");
  return from_bytes(train_subwords(sentences, options, name), name);
}

Vocabulary Vocabulary::load(const std::string& path) { return from_bytes(io::read_file(path), path); }

Vocabulary Vocabulary::from_bytes(std::string bytes, const std::string& name) {
  TORCH_CHECK_VALUE(!bytes.empty(), name, ": is empty, not a SentencePiece vocabulary");
  return {std::make_shared<const std::string>(std::move(bytes)), name};
}

std::uint32_t Vocabulary::checksum() const { return io::crc32c(std::as_bytes(std::span(*bytes_))); }

void Vocabulary::save(const std::string& path) const { io::replace_file(path, *bytes_); }

std::vector<std::int64_t> Vocabulary::encode(std::string_view sentence) const {
  if (is_valid_utf8(sentence)) return subwords_->encode(sentence);
  return subwords_->encode(encode_utf8(decode_utf8(sentence)));
}

std::string Vocabulary::decode(std::span<const std::int64_t> symbols) const {
  std::vector<int> kept;
  for (const auto symbol : symbols) {
    TORCH_CHECK_INDEX(symbol >= 0 && symbol < size_, name_, ": symbol ", symbol, " is not one of ", size_);
    if (symbol != kPad && symbol != kBegin && symbol != kEnd) kept.push_back(static_cast<int>(symbol));
  }
  return subwords_->decode(kept);
}

std::string Vocabulary::piece(std::int64_t symbol) const {
  TORCH_CHECK_INDEX(symbol >= 0 && symbol < size_, name_, ": symbol ", symbol, " is not one of ", size_);
  return subwords_->piece(symbol);
}

VocabularyPair train_vocabularies(const ParallelText& text, const VocabularyOptions& options, bool joint) {
  std::vector<std::string_view> source, target;
  for (std::int64_t i = 0; i < text.size(); ++i) {
    const auto pair = text.pair(i);
    source.push_back(pair.source);
    target.push_back(pair.target);
  }
  if (!joint) {
    return {Vocabulary::train(source, options, text.name() + " (source)"),
            Vocabulary::train(target, options, text.name() + " (target)")};
  }
  source.insert(source.end(), target.begin(), target.end());
  const auto both = Vocabulary::train(source, options, text.name());
  return {both, both};
}

void check_vocabulary(const Vocabulary& vocabulary, std::int64_t embeddings, const std::string& model) {
  TORCH_CHECK_VALUE(vocabulary.size() == embeddings, vocabulary.name(), ": has ", vocabulary.size(), " pieces, but ",
                    model, " has embeddings for ", embeddings, "; use the vocabulary that the model was trained with");
}

}  // namespace contextpool::data
