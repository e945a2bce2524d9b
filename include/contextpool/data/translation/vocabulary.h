// Sentences as numbers: a SentencePiece vocabulary. Text is first normalised (nmt_nfkc: Unicode's NFKC, control
// characters and repeated or outer spaces left out), then cut into pieces; decode() of encode() is the normalised text,
// but for characters that no piece has: those are kUnknown and come back as " ⁇ ", or, with byte_fallback, are spelled
// in bytes and come back. "▁" (U+2581) stands for a space and comes back as one.
//
// A vocabulary is its bytes: what SentencePiece calls a model, to be kept with a checkpoint. Training is deterministic.
// In a build without SentencePiece the functions that need it throw an error that says how to get it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextpool/data/translation/parallel_text.h"

namespace contextpool::data {

// The same in every vocabulary; the first two are tensor2tensor's. Ordinary pieces follow.
constexpr std::int64_t kPad = 0, kEnd = 1, kBegin = 2, kUnknown = 3;

struct VocabularyOptions {
  std::string type = "bpe";  // or unigram
  std::int64_t size = 10'000;
  double coverage = 1;         // the share of the text's characters that get a piece of their own
  bool byte_fallback = false;  // 256 pieces for the bytes of other characters
};

void validate(const VocabularyOptions& options);  // throws c10::ValueError at the first value that cannot be

class Subwords;  // SentencePiece's

class Vocabulary {
 public:
  // From sentences; `name` stands for their file in messages.
  static Vocabulary train(std::span<const std::string_view> sentences, const VocabularyOptions& options,
                          const std::string& name);
  static Vocabulary load(const std::string& path);
  static Vocabulary from_bytes(std::string bytes, const std::string& name);

  const std::string& bytes() const { return *bytes_; }
  std::uint32_t checksum() const;  // CRC-32C of the bytes
  void save(const std::string& path) const;
  std::int64_t size() const { return size_; }
  const std::string& name() const { return name_; }  // where it came from

  // Without kBegin and kEnd. Invalid UTF-8 is read as U+FFFD, which the normalisation turns into a space.
  std::vector<std::int64_t> encode(std::string_view sentence) const;
  // kPad, kBegin and kEnd are nothing; a number outside the vocabulary is an error.
  std::string decode(std::span<const std::int64_t> symbols) const;
  std::string piece(std::int64_t symbol) const;

 private:
  Vocabulary(std::shared_ptr<const std::string> bytes, std::string name);

  std::shared_ptr<const std::string> bytes_;  // shared by copies, as is subwords_
  std::shared_ptr<const Subwords> subwords_;
  std::string name_;
  std::int64_t size_ = 0;
};

bool has_sentencepiece();  // whether this build has it

struct VocabularyPair {
  Vocabulary source, target;
};

// One for both languages (joint: the two are the same), or one for each.
VocabularyPair train_vocabularies(const ParallelText& text, const VocabularyOptions& options, bool joint);

// Throws unless a model with this many embeddings fits the vocabulary; `model` names it.
void check_vocabulary(const Vocabulary& vocabulary, std::int64_t embeddings, const std::string& model);

}  // namespace contextpool::data
