// BLEU, chrF and the bootstrap: worked examples and properties. tests/python/test_bleu.py sets them beside sacreBLEU.
#include "contextpool/eval/bleu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "contextpool/eval/bootstrap.h"
#include "contextpool/eval/chrf.h"

namespace contextpool::testing {
namespace {

using eval::Bleu;
using eval::BleuOptions;
using eval::Chrf;
using eval::ChrfOptions;
using eval::Counts;
using eval::Sentences;

BleuOptions with(const std::string& tokenizer, bool lowercase = false) {
  BleuOptions options;
  options.tokenizer = tokenizer;
  options.lowercase = lowercase;
  return options;
}

std::int64_t tokens_of(const std::string& tokenizer, const std::string& text) {
  return Bleu(with(tokenizer)).counts(text, {text})[0];
}

TEST(Bleu, IsTheFormula) {
  // 6 of 7 words, 4 of 6 pairs, 2 of 5 triples and 1 of 4 quadruples, one word shorter than the reference.
  const auto score = Bleu(with("none")).corpus({"a b c d x e f"}, {{"a b c d e f g h"}});
  const auto precision = std::pow(6. / 7 * 4 / 6 * 2 / 5 * 1 / 4, 0.25);
  EXPECT_NEAR(score.score, 100 * std::exp(1 - 8. / 7) * precision, 1e-9);
  EXPECT_EQ(score.details(), "85.7/66.7/40.0/25.0 (BP = 0.867 ratio = 0.875 hyp_len = 7 ref_len = 8)");
}

TEST(Bleu, ACopyScores100AndNothingScores0) {
  const Sentences text = {"Ein Mann, der 1,000.5 Euro hat.", "Zwei Hunde laufen über die Wiese."};
  for (const auto* tokenizer : {"13a", "intl", "char", "none"}) {
    EXPECT_NEAR(Bleu(with(tokenizer)).corpus(text, {text}).score, 100, 1e-9) << tokenizer;
    EXPECT_EQ(Bleu(with(tokenizer)).corpus({"", ""}, {text}).score, 0) << tokenizer;
    EXPECT_EQ(Bleu(with(tokenizer)).corpus({"", ""}, {{"", ""}}).score, 0) << tokenizer;
  }
}

TEST(Bleu, AMatchCountsAsOftenAsItIsInOneReference) {
  const auto counts = Bleu(with("none")).counts("the the the", {"the cat", "the the dog sat"});
  EXPECT_EQ(counts[2], 2);
  EXPECT_EQ(counts[0], 3);
  EXPECT_EQ(counts[1], 2);  // 2 and 4 are as near to 3; the shorter counts
}

TEST(Bleu, TokenizersKeepNumbersWhole) {
  EXPECT_EQ(tokens_of("13a", "1,000.50 Euro."), 3);
  EXPECT_EQ(tokens_of("13a", "in 1999-2000, \"so\""), 8);  // in 1999 - 2000 , " so "
  EXPECT_EQ(tokens_of("13a", "&lt;b&gt;"), 3);
  EXPECT_EQ(tokens_of("13a", "«Wie?»"), 3);  // ?, but no quotation mark of another script
  EXPECT_EQ(tokens_of("intl", "«Wie?»"), 4);
  EXPECT_EQ(tokens_of("intl", "5€ 3.5"), 3);
  EXPECT_EQ(tokens_of("intl", "the end 1999."), 3);  // the period stays, as in mteval-v14
  EXPECT_EQ(tokens_of("char", "ab c\u00a0d"), 4);
}

TEST(Bleu, LowerCaseIsUnicodes) {
  const auto same = [](const std::string& a, const std::string& b) {
    return Bleu(with("none", true)).counts(a, {b})[2] == 1;
  };
  EXPECT_TRUE(same("ÄÖÜẞ", "äöüß"));
  EXPECT_TRUE(same("ΌΣΟΣ", "όσος"));
  EXPECT_TRUE(same("İ", "i̇"));
  EXPECT_FALSE(same("ΌΣΟΣ", "όσοσ"));
  EXPECT_FALSE(same("A", "Ä"));
}

TEST(Bleu, InvalidUtf8CountsAsReplacementCharacters) {
  EXPECT_EQ(Bleu(with("none")).counts("a \xff\xfe b", {"a \ufffd\ufffd b"})[2], 3);
  EXPECT_EQ(tokens_of("char", "\xe2\x82 \xed\xa0\x80"), 4);
}

TEST(Bleu, BadOptionsAndUnequalListsAreNamed) {
  const auto message = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_NE(message([] { Bleu{with("13b")}; }).find("did you mean \"13a\""), std::string::npos);
  EXPECT_NE(message([] {
              Bleu().corpus({"a", "b"}, {{"a", "b"}, {"a"}});
            }).find("reference 2 has 1"),
            std::string::npos);
  EXPECT_NE(message([] { Bleu().corpus({"a"}, {}); }).find("at least one reference"), std::string::npos);
  EXPECT_NE(message([] { Bleu().corpus({}, {{}}); }).find("no sentences"), std::string::npos);
  EXPECT_NE(message([] { Chrf{ChrfOptions{.char_order = 0}}; }).find("not both 0"), std::string::npos);
  const auto counts = Bleu().all_counts({"a"}, {{"a"}});
  EXPECT_NE(message([&] {
              eval::paired_bootstrap(Bleu(), counts, {}, {10, 1});
            }).find("same test set"),
            std::string::npos);
  const std::vector<std::int64_t> outside = {1};
  EXPECT_NE(message([&] { eval::paired_bootstrap(Bleu(), counts, counts, outside); }).find("index 1"),
            std::string::npos);
}

TEST(Chrf, IsTheFormula) {
  // Characters abc against abd: 2 of 3 and 1 of 2 match in both directions, no triple does; F = P = R.
  EXPECT_NEAR(Chrf(ChrfOptions{.char_order = 3}).sentence("ab c", {"abd"}), 100 * (2. / 3 + 1. / 2) / 3, 1e-9);
  const Counts counts = Chrf(ChrfOptions{.char_order = 1, .word_order = 1}).counts("(hi) x", {"(hi ) y"});
  EXPECT_EQ(counts, (Counts{5, 5, 4, 3, 4, 1}));  // words "(hi", ")", "x" and "(", "hi", ")", "y"
  EXPECT_EQ(Chrf(ChrfOptions{.word_order = 2}).name(), "chrF2++");
}

TEST(Bootstrap, TellsABetterSystem) {
  Sentences text, worse;
  for (int i = 0; i < 40; ++i) {
    text.push_back("a sentence of number " + std::to_string(i) + " and some words");
    worse.push_back(i % 2 == 0 ? "a sentence and words" : text.back());
  }
  const Bleu bleu;
  const auto good = bleu.all_counts(text, {text}), bad = bleu.all_counts(worse, {text});
  EXPECT_EQ(eval::paired_bootstrap(bleu, good, good, {100, 7}).p_value, 1. / 101);  // by the definition; see the header
  const auto result = eval::paired_bootstrap(bleu, bad, good, {200, 7});
  EXPECT_LT(result.p_value, 0.01);
  EXPECT_NEAR(result.system.mean, 100, 1e-9);
  EXPECT_NEAR(result.system.interval, 0, 1e-9);
  EXPECT_GT(result.baseline.interval, 1);
  const auto indices = eval::bootstrap_indices(40, {200, 7});
  EXPECT_EQ(eval::paired_bootstrap(bleu, bad, good, indices).baseline.mean, result.baseline.mean);
}

}  // namespace
}  // namespace contextpool::testing
