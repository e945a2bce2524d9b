// Vocabularies: training repeats, text comes back normalised, symbols have their places, and bad bytes are refused.
#include "contextpool/data/translation/vocabulary.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "contextpool/data/translation/number_names.h"
#include "contextpool/data/translation/tokenized_pairs.h"
#include "files.h"

namespace contextpool::testing {
namespace {

using data::ParallelText;
using data::Vocabulary;
using data::VocabularyOptions;

class Vocabularies : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {  // NOLINT(readability-identifier-naming): GoogleTest's name
    if (!data::has_sentencepiece()) GTEST_SKIP() << "built without SentencePiece";
  }
  static ParallelText text() { return data::number_pairs("de", data::Split::train, 1500, 1); }
  VocabularyOptions options(std::int64_t size = 150) const { return {.type = GetParam(), .size = size}; }
};

std::string round_trip(const Vocabulary& vocabulary, const std::string& sentence) {
  return vocabulary.decode(vocabulary.encode(sentence));
}

TEST_P(Vocabularies, TrainingRepeatsAndGivesTheSizeAskedFor) {
  const auto joint = data::train_vocabularies(text(), options(), true);
  EXPECT_EQ(joint.source.bytes(), data::train_vocabularies(text(), options(), true).target.bytes());
  EXPECT_EQ(joint.source.bytes(), joint.target.bytes());
  EXPECT_EQ(joint.source.size(), 150);
  const auto separate = data::train_vocabularies(text(), options(70), false);
  EXPECT_NE(separate.source.bytes(), separate.target.bytes());
  EXPECT_EQ(separate.target.size(), 70);
  EXPECT_LT(separate.target.encode("zweihunderttausend").size(), separate.source.encode("zweihunderttausend").size());
}

TEST_P(Vocabularies, TextComesBackNormalised) {
  const auto pairs = text();
  const auto vocabulary = data::train_vocabularies(pairs, options(), true).source;
  for (std::int64_t i = 0; i < pairs.size(); i += 7) {
    EXPECT_EQ(round_trip(vocabulary, std::string(pairs.pair(i).source)), pairs.pair(i).source);
    EXPECT_EQ(round_trip(vocabulary, std::string(pairs.pair(i).target)), pairs.pair(i).target);
  }
  EXPECT_EQ(round_trip(vocabulary, "  one \t two\u00a0"), "one two");
  EXPECT_EQ(round_trip(vocabulary, ""), "");
  EXPECT_EQ(round_trip(vocabulary, "one 漢"), "one  \u2047 ");  // no piece has it
  EXPECT_EQ(vocabulary.encode("漢").back(), data::kUnknown);
}

TEST_P(Vocabularies, WithBytesAnyTextComesBack) {
  auto with_bytes = options(450);
  with_bytes.byte_fallback = true;
  const auto vocabulary = data::train_vocabularies(text(), with_bytes, true).source;
  for (const auto* sentence : {"漢字 and 😀 emoji", "שלום", "Ünï 👩‍👩‍👧", "é", "a😀b"})
    EXPECT_EQ(round_trip(vocabulary, sentence), sentence);
  EXPECT_EQ(round_trip(vocabulary,
                       "a\xff"
                       "b"),
            "a b");
  std::string line;
  for (int i = 0; i < 10'000; ++i) line += "zwanzig 漢 ";
  line.pop_back();
  EXPECT_EQ(round_trip(vocabulary, line), line);  // 130,000 bytes
}

TEST_P(Vocabularies, SpecialSymbolsHaveTheirPlaces) {
  const auto vocabulary = data::train_vocabularies(text(), options(), true).source;
  EXPECT_EQ(vocabulary.piece(data::kPad), "<pad>");
  EXPECT_EQ(vocabulary.piece(data::kEnd), "</s>");
  EXPECT_EQ(vocabulary.piece(data::kBegin), "<s>");
  EXPECT_EQ(vocabulary.piece(data::kUnknown), "<unk>");
  for (const auto symbol : vocabulary.encode("one <s> two </s> <pad>")) {
    EXPECT_TRUE(symbol >= data::kUnknown && symbol < vocabulary.size());  // text cannot name them
  }
  auto symbols = vocabulary.encode("one");
  symbols.insert(symbols.begin(), data::kBegin);
  symbols.insert(symbols.end(), {data::kEnd, data::kPad, data::kPad});
  EXPECT_EQ(vocabulary.decode(symbols), "one");
  EXPECT_ANY_THROW(vocabulary.decode(std::vector<std::int64_t>{150}));
  EXPECT_ANY_THROW(vocabulary.decode(std::vector<std::int64_t>{-1}));
  EXPECT_ANY_THROW(vocabulary.piece(150));
}

TEST_P(Vocabularies, TravelAsBytes) {
  const Folder folder;
  const auto vocabulary = data::train_vocabularies(text(), options(), true).source;
  vocabulary.save(folder.path("v.model"));
  const auto loaded = Vocabulary::load(folder.path("v.model"));
  EXPECT_EQ(loaded.bytes(), vocabulary.bytes());
  EXPECT_EQ(loaded.checksum(), vocabulary.checksum());
  EXPECT_EQ(Vocabulary::from_bytes(loaded.bytes(), "state.json").encode("dreißig"), vocabulary.encode("dreißig"));
  data::check_vocabulary(loaded, 150, "model");
  const auto message = message_of([&] { data::check_vocabulary(loaded, 151, "model.safetensors"); });
  EXPECT_NE(message.find("150 pieces, but model.safetensors has embeddings for 151"), std::string::npos) << message;
}

TEST_P(Vocabularies, ASizeThatDoesNotFitTheTextIsExplained) {
  const auto large = message_of([&] { data::train_vocabularies(text(), options(100'000), true); });
  EXPECT_NE(large.find("number names"), std::string::npos) << large;
  EXPECT_NE(large.find("100000 pieces"), std::string::npos) << large;
  EXPECT_NE(large.find("too high"), std::string::npos) << large;
  const auto small = message_of([&] { data::train_vocabularies(text(), options(10), true); });
  EXPECT_NE(small.find("10 pieces"), std::string::npos) << small;
  EXPECT_EQ(small.find('\n'), small.find("\nException raised")) << small;
  EXPECT_ANY_THROW(data::train_vocabularies(text(), {.size = 4}, true));
  EXPECT_ANY_THROW(data::train_vocabularies(text(), {.type = "words"}, true));
  EXPECT_ANY_THROW(data::train_vocabularies(text(), {.coverage = 0}, true));
}

TEST_P(Vocabularies, OtherBytesAreRefused) {
  const auto vocabulary = data::train_vocabularies(text(), options(), true).source;
  const auto& good = vocabulary.bytes();
  for (const auto& bytes :
       {std::string(), std::string("hello"), std::string(1000, '\xff'), good.substr(0, good.size() / 2)}) {
    const auto message = message_of([&] { Vocabulary::from_bytes(bytes, "the checkpoint"); });
    EXPECT_NE(message.find("the checkpoint: is"), std::string::npos) << message;
  }
  // Bytes that were changed are refused, or are a vocabulary that works.
  std::mt19937_64 random(1);
  for (int k = 0; k < 60; ++k) {
    auto bytes = good;
    for (int change = 0; change < 3; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      const auto changed = Vocabulary::from_bytes(bytes, "changed");
      for (const auto symbol : changed.encode("zweihundert 漢")) EXPECT_TRUE(symbol >= 0 && symbol < changed.size());
    } catch (const c10::Error& error) {
      EXPECT_EQ(std::string(error.what()).rfind("changed: ", 0), 0U) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Vocabularies, ::testing::Values("bpe", "unigram"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TokenizedPairs, BatchesAreLaidOutAsTheModelReadsThem) {
  if (!data::has_sentencepiece()) GTEST_SKIP() << "built without SentencePiece";
  const auto numbers = data::number_pairs("fr", data::Split::train, 1500, 1);
  const auto vocabulary = data::train_vocabularies(numbers, {.size = 150}, true).source;
  const auto text = ParallelText::from_pairs(
      {{"one", "un"}, {"two hundred and one", "deux cent un"}, {"\u200b", "x"}, {std::string(300, 'q'), "x"}}, "pairs");
  const data::TokenizedPairs pairs(text, vocabulary, vocabulary, 100);
  EXPECT_EQ(pairs.report().text(), "4 lines, 2 kept; dropped: 1 empty (line 3), 1 too long (line 4)");
  const std::vector<std::int64_t> both = {1, 0};
  const auto batch = pairs.batch(both);
  const auto source = vocabulary.encode("two hundred and one"), target = vocabulary.encode("deux cent un");
  ASSERT_EQ(batch.source.sizes(), (at::IntArrayRef{2, static_cast<std::int64_t>(source.size()) + 1}));
  ASSERT_EQ(batch.target.sizes(), (at::IntArrayRef{2, static_cast<std::int64_t>(target.size()) + 1}));
  ASSERT_EQ(batch.target_input.sizes(), batch.target.sizes());
  const auto row = [](const at::Tensor& t, std::int64_t r) {
    const auto* begin = t.const_data_ptr<std::int64_t>() + r * t.size(1);
    return std::vector<std::int64_t>(begin, begin + t.size(1));
  };
  const auto with = [](std::vector<std::int64_t> front, const std::vector<std::int64_t>& middle,
                       std::vector<std::int64_t> back, std::int64_t width) {
    front.insert(front.end(), middle.begin(), middle.end());
    front.insert(front.end(), back.begin(), back.end());
    front.resize(static_cast<std::size_t>(width), data::kPad);
    return front;
  };
  EXPECT_EQ(row(batch.source, 0), with({}, source, {data::kEnd}, batch.source.size(1)));
  EXPECT_EQ(row(batch.target, 0), with({}, target, {data::kEnd}, batch.target.size(1)));
  EXPECT_EQ(row(batch.target_input, 0), with({data::kBegin}, target, {}, batch.target.size(1)));
  EXPECT_EQ(row(batch.source, 1), with({}, vocabulary.encode("one"), {data::kEnd}, batch.source.size(1)));
  EXPECT_EQ(row(batch.target_input, 1), with({data::kBegin}, vocabulary.encode("un"), {}, batch.target.size(1)));
  EXPECT_EQ(row(batch.target, 1), with({}, vocabulary.encode("un"), {data::kEnd}, batch.target.size(1)));

  const std::vector<std::vector<std::int64_t>> sentences = {source, {}};
  const auto alone = data::source_batch(sentences);
  EXPECT_EQ(row(alone, 0), row(batch.source, 0));
  EXPECT_EQ(row(alone, 1), with({data::kEnd}, {}, {}, alone.size(1)));  // a blank line is a sentence, too
  EXPECT_ANY_THROW(pairs.batch(std::vector<std::int64_t>{2}));
  EXPECT_NE(pairs.checksum(), data::TokenizedPairs(text, vocabulary, vocabulary, 1000).checksum());
}

}  // namespace
}  // namespace contextpool::testing
