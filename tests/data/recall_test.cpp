// Generated rows: every answer follows from the pairs before it, and from nothing else.
#include "contextpool/data/recall.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <set>

namespace contextpool::testing {
namespace {

using data::make_recall;
using data::RecallOptions;
using data::Split;

// Reads rows as a solver would: the pairs, then for each query the symbol that its hops lead to.
void expect_answers(const RecallOptions& o) {
  const auto batch = make_recall(o, Split::train, 7, 3, {0, 50});
  ASSERT_EQ(batch.input.sizes(), (std::vector<int64_t>{50, 2 * o.pairs + 2 * o.queries}));
  const auto input = batch.input.accessor<int64_t, 2>(), target = batch.target.accessor<int64_t, 2>();
  const bool chain = o.kind == "k-hop";
  for (int64_t r = 0; r < 50; ++r) {
    std::map<int64_t, int64_t> next;
    for (int64_t i = 0; i < o.pairs; ++i) {
      EXPECT_TRUE(next.emplace(input[r][2 * i], input[r][2 * i + 1]).second) << "a key twice";
      EXPECT_GT(input[r][2 * i], chain ? o.hops : 0);
      EXPECT_EQ(target[r][2 * i], data::kNotAsked);
      EXPECT_EQ(target[r][2 * i + 1], data::kNotAsked);
    }
    for (int64_t i = 0; i < o.queries; ++i) {
      const auto at = 2 * (o.pairs + i), query = chain ? at + 1 : at, other = chain ? at : at + 1;
      const auto hops = chain ? input[r][other] : 1;
      EXPECT_GE(hops, 1);
      EXPECT_LE(hops, chain ? o.hops : 1);
      auto symbol = input[r][query];
      for (int64_t k = 0; k < hops; ++k) symbol = next.at(symbol);
      EXPECT_EQ(target[r][query], symbol);
      EXPECT_EQ(target[r][other], data::kNotAsked);
      if (!chain) {
        EXPECT_EQ(input[r][other], 0);
      }
    }
  }
  EXPECT_GE(batch.input.min().item<int64_t>(), 0);
  EXPECT_LT(batch.input.max().item<int64_t>(), o.symbols);
}

TEST(Recall, AsksForTheValuesOfItsKeys) {
  expect_answers({.kind = "recall", .symbols = 41, .pairs = 20, .queries = 30});
  expect_answers({.kind = "recall", .symbols = 256, .pairs = 9, .queries = 3});
}

TEST(Recall, AsksForWhatSeveralHopsLeadTo) {
  for (const int64_t hops : {1, 2, 5, 20}) {
    expect_answers({.kind = "k-hop", .symbols = 22 + hops, .pairs = 20, .queries = 25, .hops = hops});
  }
}

TEST(Recall, IsAFunctionOfSplitSeedStepAndRow) {
  for (const auto& kind : data::recall_kinds()) {
    const RecallOptions o{.kind = kind, .symbols = 64, .pairs = 12, .queries = 4};
    const auto all = make_recall(o, Split::train, 1, 5, {0, 8}), part = make_recall(o, Split::train, 1, 5, {3, 6});
    EXPECT_TRUE(torch::equal(all.input.slice(0, 3, 6), part.input));
    EXPECT_TRUE(torch::equal(all.target.slice(0, 3, 6), part.target));
    for (const auto& other : {make_recall(o, Split::train, 2, 5, {0, 8}), make_recall(o, Split::train, 1, 6, {0, 8}),
                              make_recall(o, Split::dev, 1, 5, {0, 8}), make_recall(o, Split::test, 1, 5, {0, 8})}) {
      for (int64_t row = 0; row < 8; ++row) EXPECT_FALSE(torch::equal(all.input[row], other.input[row]));
    }
    EXPECT_FALSE(torch::equal(all.input[0], all.input[1]));
  }
}

// Where a queried pair stands tells nothing, and every symbol and number of hops is asked for as often.
TEST(Recall, ChoosesEvenly) {
  const RecallOptions o{.kind = "k-hop", .symbols = 11, .pairs = 8, .queries = 1, .hops = 1};
  const auto input = make_recall(o, Split::train, 1, 0, {0, 4000}).input;
  const auto queries = input.select(1, 17);
  const auto counts = queries.bincount({}, 11).slice(0, 2).to(torch::kDouble);
  EXPECT_LT((counts / 4000 - 1.0 / 9).abs().max().item<double>(), 0.025);
  const auto places = (input.slice(1, 0, 16, 2) == queries.unsqueeze(1)).to(torch::kDouble).mean(0);
  EXPECT_LT((places - 1.0 / 8).abs().max().item<double>(), 0.025);
  const auto hops =
      make_recall({.kind = "k-hop", .symbols = 20, .pairs = 8, .queries = 4, .hops = 4}, Split::train, 1, 0, {0, 4000})
          .input.slice(1, 16, 24, 2)
          .flatten()
          .bincount({}, 5)
          .slice(0, 1);
  EXPECT_LT((hops.to(torch::kDouble) / 16000 - 0.25).abs().max().item<double>(), 0.015);
}

TEST(Recall, RefusesWhatNoRowFits) {
  const auto refused = [](const RecallOptions& o) { EXPECT_THROW(validate(o), c10::ValueError) << o.kind; };
  refused({.kind = "recal"});
  refused({.kind = "recall", .symbols = 64, .pairs = 32});
  refused({.kind = "recall", .symbols = 256, .pairs = 8, .queries = 0});
  refused({.kind = "k-hop", .symbols = 35, .pairs = 32});
  refused({.kind = "k-hop", .pairs = 8, .queries = 8, .hops = 9});
  refused({.kind = "k-hop", .pairs = 8, .queries = 1, .hops = 0});
  refused({.pairs = 0});
  validate(RecallOptions{});
}

}  // namespace
}  // namespace contextpool::testing
