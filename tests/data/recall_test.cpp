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

// Reads rows as a solver would: the pairs, then for each query the symbol that `hops` pairs lead to.
void expect_answers(const RecallOptions& o, int64_t hops) {
  const auto batch = make_recall(o, 7, 3, {0, 50});
  ASSERT_EQ(batch.input.sizes(), (std::vector<int64_t>{50, 2 * o.pairs + 2 * o.queries}));
  const auto input = batch.input.accessor<int64_t, 2>(), target = batch.target.accessor<int64_t, 2>();
  for (int64_t r = 0; r < 50; ++r) {
    std::map<int64_t, int64_t> next;
    for (int64_t i = 0; i < o.pairs; ++i) {
      EXPECT_TRUE(next.emplace(input[r][2 * i], input[r][2 * i + 1]).second) << "a key twice";
      EXPECT_EQ(target[r][2 * i], data::kNotAsked);
      EXPECT_EQ(target[r][2 * i + 1], data::kNotAsked);
    }
    std::set<int64_t> queries;
    for (int64_t i = 0; i < o.queries; ++i) {
      const auto at = 2 * (o.pairs + i);
      auto symbol = input[r][at];
      EXPECT_TRUE(queries.insert(symbol).second) << "a query twice";
      for (int64_t k = 0; k < hops; ++k) symbol = next.at(symbol);
      EXPECT_EQ(target[r][at], symbol);
      EXPECT_EQ(input[r][at + 1], 0);
      EXPECT_EQ(target[r][at + 1], data::kNotAsked);
    }
  }
  EXPECT_GE(batch.input.min().item<int64_t>(), 0);
  EXPECT_LT(batch.input.max().item<int64_t>(), o.vocabulary);
}

TEST(Recall, AsksForTheValuesOfItsKeys) {
  expect_answers({.kind = "recall", .vocabulary = 41, .pairs = 20, .queries = 20}, 1);
  expect_answers({.kind = "recall", .vocabulary = 256, .pairs = 9, .queries = 3}, 1);
}

TEST(Recall, AsksForWhatSeveralHopsLeadTo) {
  for (const int64_t hops : {1, 2, 5}) {
    expect_answers({.kind = "hops", .vocabulary = 22, .pairs = 20, .queries = 15, .hops = hops}, hops);
  }
}

TEST(Recall, IsAFunctionOfSeedStepAndRow) {
  for (const std::string kind : {"recall", "hops"}) {
    const RecallOptions o{.kind = kind, .vocabulary = 64, .pairs = 12, .queries = 4};
    const auto all = make_recall(o, 1, 5, {0, 8}), part = make_recall(o, 1, 5, {3, 6});
    EXPECT_TRUE(torch::equal(all.input.slice(0, 3, 6), part.input));
    EXPECT_TRUE(torch::equal(all.target.slice(0, 3, 6), part.target));
    EXPECT_FALSE(torch::equal(all.input, make_recall(o, 2, 5, {0, 8}).input));
    EXPECT_FALSE(torch::equal(all.input, make_recall(o, 1, 6, {0, 8}).input));
    EXPECT_FALSE(torch::equal(all.input[0], all.input[1]));
  }
}

// Where a queried pair stands tells nothing, and every key is asked for as often.
TEST(Recall, ChoosesEvenly) {
  const RecallOptions o{.kind = "hops", .vocabulary = 10, .pairs = 8, .queries = 1, .hops = 1};
  const auto batch = make_recall(o, 1, 0, {0, 4000});
  const auto queries = batch.input.select(1, 16);
  const auto counts = queries.bincount({}, 10).slice(0, 1).to(torch::kDouble);
  EXPECT_LT((counts / 4000 - 1.0 / 9).abs().max().item<double>(), 0.025);
  const auto places = (batch.input.slice(1, 0, 16, 2) == queries.unsqueeze(1)).to(torch::kDouble).mean(0);
  EXPECT_LT((places - 1.0 / 8).abs().max().item<double>(), 0.025);
}

TEST(Recall, RefusesWhatNoRowFits) {
  const auto refused = [](const RecallOptions& o) { EXPECT_THROW(validate(o), c10::ValueError) << o.kind; };
  refused({.kind = "recal"});
  refused({.kind = "recall", .vocabulary = 64, .pairs = 32});
  refused({.kind = "recall", .vocabulary = 256, .pairs = 8, .queries = 9});
  refused({.kind = "hops", .vocabulary = 33, .pairs = 32});
  refused({.kind = "hops", .pairs = 8, .queries = 8, .hops = 2});
  refused({.kind = "hops", .pairs = 8, .queries = 1, .hops = 0});
  refused({.pairs = 0});
  validate(RecallOptions{});
}

}  // namespace
}  // namespace contextpool::testing
