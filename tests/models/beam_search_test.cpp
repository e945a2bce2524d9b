// The search itself, over a made-up model whose symbols depend on all before them: against a search through every
// translation, and what it promises of order, ties, limits and batches.
#include "contextpool/models/beam_search.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "../device.h"

namespace contextpool::testing {
namespace {

using models::BeamSearchOptions;
using models::BeamTask;
using models::Hypothesis;
using torch::Tensor;
using Symbols = std::vector<int64_t>;

constexpr int64_t kVocabulary = 4, kBegin = 1, kEnd = 2;

// A sentence's logits after some symbols: from a generator that begins with a number made of all of them.
Tensor random_logits(int64_t sentence, const Symbols& prefix) {
  uint64_t seed = 17 + static_cast<uint64_t>(sentence);
  for (const auto symbol : prefix) seed = seed * 1000003 + static_cast<uint64_t>(symbol) + 1;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return 1.5 * torch::randn({kVocabulary}, generator);
}

using Logits = std::function<Tensor(int64_t, const Symbols&)>;

// Rows are prefixes.
class MadeUp : public models::BeamDecoder {
 public:
  MadeUp(Logits logits, Symbols sentences, int64_t beam)
      : logits_(std::move(logits)), sentences_(std::move(sentences)) {
    rows_.resize(sentences_.size() * beam);
    beam_ = beam;
  }
  Tensor step(const Tensor& tokens) override {
    EXPECT_EQ(tokens.size(0), static_cast<int64_t>(rows_.size()));
    most_rows = std::max<int64_t>(most_rows, tokens.size(0));
    least_rows = std::min<int64_t>(least_rows, tokens.size(0));
    ++steps;
    const auto symbols = tokens.cpu();
    std::vector<Tensor> all;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (steps > 1) rows_[i].push_back(symbols[static_cast<int64_t>(i)].item<int64_t>());
      all.push_back(logits_(sentences_[i / beam_], rows_[i]));
    }
    return there(torch::stack(all));
  }
  void select(const Tensor& rows, const Tensor& sentences) override {
    std::vector<Symbols> chosen;
    for (int64_t i = 0; i < rows.size(0); ++i) chosen.push_back(rows_[rows[i].item<int64_t>()]);
    for (int64_t i = 0; i < rows.size(0); ++i) {  // in a sentence of its own
      const auto sentence = sentences.defined() ? sentences[i / beam_].item<int64_t>() : i / beam_;
      EXPECT_EQ(rows[i].item<int64_t>() / beam_, sentence);
    }
    rows_ = chosen;
    if (!sentences.defined()) return;
    Symbols stay;
    for (int64_t i = 0; i < sentences.size(0); ++i) stay.push_back(sentences_[sentences[i].item<int64_t>()]);
    sentences_ = stay;
  }

  int64_t most_rows = 0, least_rows = 1 << 20, steps = 0;

 private:
  Logits logits_;
  Symbols sentences_;
  std::vector<Symbols> rows_;
  int64_t beam_;
};

std::vector<std::vector<Hypothesis>> search(MadeUp decoder, const Symbols& longest, const BeamSearchOptions& options) {
  return models::beam_search(decoder, BeamTask{.longest = longest, .begin = kBegin, .end = kEnd, .device = device()},
                             options);
}

std::vector<Hypothesis> search_one(const Logits& logits, int64_t sentence, int64_t longest,
                                   const BeamSearchOptions& options) {
  return search(MadeUp(logits, {sentence}, options.beam), {longest}, options)[0];
}

// Every translation of up to `longest` symbols, the best first.
std::vector<Hypothesis> exhaustive(const Logits& logits, int64_t sentence, int64_t longest, double alpha) {
  std::vector<Hypothesis> all;
  std::function<void(const Symbols&, double)> go = [&](const Symbols& prefix, double log_probability) {
    const auto logs = logits(sentence, prefix).to(torch::kFloat64).log_softmax(0);
    const auto length = static_cast<int64_t>(prefix.size()) + 1;
    const double ended = log_probability + logs[kEnd].item<double>();
    all.push_back({prefix, ended, ended / std::pow((5.0 + static_cast<double>(length)) / 6, alpha)});
    if (length == longest) return;
    for (int64_t symbol = 0; symbol < kVocabulary; ++symbol) {
      if (symbol == kEnd) continue;
      auto longer = prefix;
      longer.push_back(symbol);
      go(longer, log_probability + logs[symbol].item<double>());
    }
  };
  go({}, 0);
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
  return all;
}

TEST(BeamSearch, WideEnoughFindsWhatAnExhaustiveSearchFinds) {
  for (const double alpha : {0.0, 0.6, 2.0}) {
    for (int64_t sentence = 0; sentence < 3; ++sentence) {
      SCOPED_TRACE(::testing::Message() << "alpha " << alpha << " sentence " << sentence);
      const auto expected = exhaustive(random_logits, sentence, 5, alpha);
      const auto got = search_one(random_logits, sentence, 5, {.beam = 81, .alpha = alpha, .n_best = 20});
      ASSERT_EQ(got.size(), 20U);
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].tokens, expected[i].tokens) << i;
        EXPECT_NEAR(got[i].log_probability, expected[i].log_probability, 1e-5);
        EXPECT_NEAR(got[i].score, expected[i].score, 1e-5);
      }
    }
  }
}

TEST(BeamSearch, OfANarrowBeamIsSortedDistinctAndTrue) {
  for (int64_t sentence = 0; sentence < 8; ++sentence) {
    const auto all = exhaustive(random_logits, sentence, 6, 0.6);
    const auto got = search_one(random_logits, sentence, 6, {.n_best = 4});
    ASSERT_EQ(got.size(), 4U);
    std::set<Symbols> different;
    for (std::size_t i = 0; i < got.size(); ++i) {
      different.insert(got[i].tokens);
      if (i > 0) {
        EXPECT_GE(got[i - 1].score, got[i].score);
      }
      const auto found = std::find_if(all.begin(), all.end(), [&](const auto& h) { return h.tokens == got[i].tokens; });
      ASSERT_NE(found, all.end());
      EXPECT_NEAR(got[i].score, found->score, 1e-5);
    }
    EXPECT_EQ(different.size(), 4U);
    const auto one = search_one(random_logits, sentence, 6, {});
    EXPECT_EQ(one.size(), 1U);
    EXPECT_EQ(one[0].tokens, got[0].tokens) << "stopping earlier loses nothing";
  }
}

TEST(BeamSearch, OfOneIsGreedy) {
  for (int64_t sentence = 0; sentence < 8; ++sentence) {
    Symbols tokens;
    double log_probability = 0;
    while (true) {
      const auto logs = random_logits(sentence, tokens).log_softmax(0);
      const auto symbol = tokens.size() == 6 ? kEnd : logs.argmax().item<int64_t>();
      log_probability += logs[symbol].item<double>();
      if (symbol == kEnd) break;
      tokens.push_back(symbol);
    }
    const auto got = search_one(random_logits, sentence, 7, {.beam = 1});
    EXPECT_EQ(got[0].tokens, tokens);
    EXPECT_NEAR(got[0].log_probability, log_probability, 1e-5);
  }
}

TEST(BeamSearch, DoesNotDependOnTheRestOfTheBatch) {
  const BeamSearchOptions options{.n_best = 3};
  const Symbols sentences{0, 1, 2, 3, 4}, longest{7, 2, 1, 9, 5};
  const auto together = search(MadeUp(random_logits, sentences, options.beam), longest, options);
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    const auto alone = search_one(random_logits, sentences[i], longest[i], options);
    ASSERT_EQ(together[i].size(), alone.size());
    for (std::size_t j = 0; j < alone.size(); ++j) {
      EXPECT_EQ(together[i][j].tokens, alone[j].tokens);
      EXPECT_EQ(together[i][j].score, alone[j].score);
      EXPECT_LT(static_cast<int64_t>(alone[j].tokens.size()), longest[i]);
    }
  }
  EXPECT_EQ(together[2].size(), 1U) << "with room for the end only, there is one translation";
}

TEST(BeamSearch, LetsCompleteSentencesLeave) {
  const auto logits = [](int64_t sentence, const Symbols& prefix) {
    const bool over = static_cast<int64_t>(prefix.size()) >= 3 * sentence;
    return torch::tensor({0.0F, 0.0F, over ? 20.0F : -20.0F, 1.0F});
  };
  MadeUp decoder(logits, {0, 1, 2}, 4);
  const auto got =
      models::beam_search(decoder, {.longest = {50, 50, 50}, .begin = kBegin, .end = kEnd, .device = device()}, {});
  EXPECT_EQ(got[0][0].tokens.size(), 0U);
  EXPECT_EQ(got[1][0].tokens, (Symbols{3, 3, 3}));
  EXPECT_EQ(got[2][0].tokens.size(), 6U);
  EXPECT_EQ(decoder.most_rows, 12);
  EXPECT_EQ(decoder.least_rows, 4);
  EXPECT_LT(decoder.steps, 12) << "no live hypothesis could win";
}

TEST(BeamSearch, RanksEqualsByTheirSymbols) {
  const auto even = [](int64_t, const Symbols&) { return torch::zeros({kVocabulary}); };
  const auto got = search_one(even, 0, 3, {.beam = 4, .alpha = 0, .n_best = 4});
  ASSERT_EQ(got.size(), 4U);
  EXPECT_EQ(got[0].tokens, Symbols{});
  EXPECT_EQ(got[1].tokens, Symbols{0});
  EXPECT_EQ(got[2].tokens, Symbols{1});
  EXPECT_EQ(got[3].tokens, (Symbols{0, 0})) << "{3} and its end came ninth";
}

TEST(BeamSearch, RanksEqualsAmongManyByTheirSymbols) {
  const auto even = [](int64_t, const Symbols&) { return (torch::arange(4000) == 3999).to(torch::kFloat32); };
  const auto got = search_one(even, 0, 2, {.beam = 4, .alpha = 0, .n_best = 4});
  ASSERT_EQ(got.size(), 4U);
  EXPECT_EQ(got[0].tokens, Symbols{});
  EXPECT_EQ(got[1].tokens, Symbols{3999});
  EXPECT_EQ(got[2].tokens, Symbols{0});
  EXPECT_EQ(got[3].tokens, Symbols{1});
}

TEST(BeamSearch, RefusesWhatCannotBe) {
  const auto with = [](const BeamSearchOptions& options) { return search_one(random_logits, 0, 3, options); };
  EXPECT_THROW(with({.beam = 0}), c10::ValueError);
  EXPECT_THROW(with({.beam = 2, .n_best = 3}), c10::ValueError);
  EXPECT_THROW(with({.alpha = -1}), c10::ValueError);
  EXPECT_THROW(with({.alpha = NAN}), c10::ValueError);
  EXPECT_THROW(with({.extra_length = 0}), c10::ValueError);
  EXPECT_THROW(search_one(random_logits, 0, 0, {}), c10::ValueError);
  const auto wrong = [](int64_t, const Symbols& prefix) {
    return torch::zeros({kVocabulary}).index_fill(0, torch::tensor({3}), prefix.empty() ? 0 : -NAN);
  };
  EXPECT_THROW(search_one(wrong, 0, 3, {}), c10::Error);
  MadeUp none(random_logits, {}, 4);
  EXPECT_TRUE(models::beam_search(none, {.longest = {}}, {}).empty());
}

}  // namespace
}  // namespace contextpool::testing
