// Batches by tokens: every pair once an epoch, never too large, the same for the same (seed, step), little padding.
#include "contextpool/data/translation/token_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "contextpool/data/permutation.h"
#include "contextpool/data/random.h"
#include "files.h"

namespace contextpool::testing {
namespace {

using data::PairLength;
using data::TokenBatches;

// Lengths like those of real text: the target near the source.
std::vector<PairLength> lengths_of(std::int64_t count) {
  std::vector<PairLength> lengths;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = data::random_bits({7, static_cast<std::uint64_t>(i)});
    const auto source = 3 + data::below(30, bits), more = data::below(9, data::random_bits({bits}));
    lengths.push_back(
        {static_cast<std::int32_t>(source), static_cast<std::int32_t>(std::max<std::int64_t>(2, source + more - 4))});
  }
  return lengths;
}

std::vector<std::vector<std::int64_t>> epoch_of(const TokenBatches& batches, std::int64_t epoch) {
  std::vector<std::vector<std::int64_t>> all;
  all.reserve(static_cast<std::size_t>(batches.per_epoch()));
  for (std::int64_t b = 0; b < batches.per_epoch(); ++b) all.push_back(batches.batch(epoch * batches.per_epoch() + b));
  return all;
}

TEST(Permutation, IsABijectionThatTheKeyChanges) {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 16, 17, 1000, 4097}) {
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < count; ++i) seen.insert(data::permuted(i, count, 9));
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), count);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), count - 1);
  }
  EXPECT_ANY_THROW(data::permuted(3, 3, 1));
  EXPECT_ANY_THROW(data::permuted(-1, 3, 1));
}

TEST(Permutation, SendsEveryEntryEverywhereAlike) {
  // Chi-squared over places: its mean is count - 1, its deviation sqrt(2 (count - 1)).
  constexpr int kKeys = 20'000;
  for (const std::int64_t count : {2, 3, 5, 8, 30}) {
    for (std::int64_t i = 0; i < count; i += std::max<std::int64_t>(1, count / 3)) {
      std::vector<double> places(static_cast<std::size_t>(count));
      for (std::uint64_t key = 0; key < kKeys; ++key) ++places[static_cast<std::size_t>(data::permuted(i, count, key))];
      double chi = 0;
      const double expected = static_cast<double>(kKeys) / static_cast<double>(count);
      for (const auto n : places) chi += (n - expected) * (n - expected) / expected;
      const auto freedom = static_cast<double>(count - 1);
      EXPECT_LT(chi, freedom + 5 * std::sqrt(2 * freedom) + 5) << i << " of " << count;
    }
  }
}

TEST(Permutation, SendsPairsOfEntriesEverywhereAlike) {
  constexpr int kKeys = 40'000;
  for (const std::int64_t count : {4, 6}) {
    std::map<std::pair<std::int64_t, std::int64_t>, double> places;
    for (std::uint64_t key = 0; key < kKeys; ++key)
      ++places[{data::permuted(0, count, key), data::permuted(1, count, key)}];
    const auto freedom = static_cast<double>(count * (count - 1) - 1);
    const auto expected = kKeys / (freedom + 1);
    double chi = 0;
    for (const auto& [place, n] : places) chi += (n - expected) * (n - expected) / expected;
    EXPECT_EQ(static_cast<double>(places.size()), freedom + 1);
    EXPECT_LT(chi, freedom + 5 * std::sqrt(2 * freedom) + 5) << count;
  }
}

TEST(TokenBatches, HaveEveryPairOnceAnEpoch) {
  const auto lengths = lengths_of(3001);
  const TokenBatches batches(lengths, {.max_tokens = 500, .seed = 3});
  for (const std::int64_t epoch : {0, 1, 1000}) {
    std::vector<std::int64_t> seen;
    for (const auto& batch : epoch_of(batches, epoch)) seen.insert(seen.end(), batch.begin(), batch.end());
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), lengths.size());
    for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], static_cast<std::int64_t>(i));
  }
}

TEST(TokenBatches, AreNeverTooLargeAndHardlyPadded) {
  const auto lengths = lengths_of(3000);
  const TokenBatches batches(lengths, {.max_tokens = 500});
  double tokens = 0, all = 0;
  for (const auto& batch : epoch_of(batches, 0)) {
    std::int64_t source = 0, target = 0;
    for (const auto i : batch) {
      const auto length = lengths[static_cast<std::size_t>(i)];
      source = std::max<std::int64_t>(source, length.source);
      target = std::max<std::int64_t>(target, length.target);
      tokens += length.source + length.target;
    }
    const auto rows = static_cast<std::int64_t>(batch.size());
    EXPECT_LE(rows * std::max(source, target), 500);
    all += static_cast<double>(rows * (source + target));
  }
  EXPECT_NEAR(batches.padding(), 1 - tokens / all, 1e-12);
  EXPECT_LT(batches.padding(), 0.06);
}

TEST(TokenBatches, AreAFunctionOfSeedAndStep) {
  const auto lengths = lengths_of(500);
  const TokenBatches a(lengths, {.max_tokens = 300, .seed = 3}), same(lengths, {.max_tokens = 300, .seed = 3});
  const TokenBatches other(lengths, {.max_tokens = 300, .seed = 4});
  EXPECT_EQ(a.batch(1234), same.batch(1234));  // without the steps before it
  EXPECT_EQ(epoch_of(a, 5), epoch_of(same, 5));
  EXPECT_NE(epoch_of(a, 5), epoch_of(a, 6));
  EXPECT_NE(epoch_of(a, 5), epoch_of(other, 5));
  EXPECT_EQ(a.epoch(a.per_epoch() - 1), 0);
  EXPECT_EQ(a.epoch(a.per_epoch()), 1);
  EXPECT_ANY_THROW(a.batch(-1));
}

TEST(TokenBatches, ChangeTheirOrderAndTheirCompany) {
  const std::vector<PairLength> lengths(1000, PairLength{5, 5});
  const TokenBatches batches(lengths, {.max_tokens = 50});
  std::set<std::set<std::int64_t>> companies;
  for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
    for (const auto& batch : epoch_of(batches, epoch)) companies.insert({batch.begin(), batch.end()});
  }
  EXPECT_EQ(companies.size(), 5U * 100);  // no two batches of ten alike
  std::int64_t rising = 0;
  const TokenBatches mixed(lengths_of(3000), {.max_tokens = 500});
  for (std::int64_t b = 0; b + 1 < mixed.per_epoch(); ++b) rising += mixed.batch(b).size() < mixed.batch(b + 1).size();
  EXPECT_GT(rising, mixed.per_epoch() / 4);
  EXPECT_LT(rising, mixed.per_epoch() * 3 / 4);
}

TEST(TokenBatches, HaveRowsForEveryRank) {
  for (const std::int64_t count : {16, 17, 100, 1001}) {
    for (const std::int64_t tokens : {580, 600, 1111}) {
      const TokenBatches batches(lengths_of(count), {.max_tokens = tokens, .min_rows = 8});
      std::int64_t rows = 0;
      for (const auto& batch : epoch_of(batches, 1)) {
        EXPECT_GE(batch.size(), 8U);
        rows += static_cast<std::int64_t>(batch.size());
      }
      EXPECT_EQ(rows, count);
    }
  }
}

TEST(TokenBatches, WhatCannotBeBatchedIsExplained) {
  const auto message = message_of([] { TokenBatches({{3, 3}, {3, 70}}, {.max_tokens = 64}); });
  EXPECT_NE(message.find("pair 1 has 70 tokens"), std::string::npos) << message;
  EXPECT_ANY_THROW(TokenBatches({}, {}));
  EXPECT_ANY_THROW(TokenBatches({{3, 3}}, {.max_tokens = 0}));
  EXPECT_ANY_THROW(TokenBatches({{3, 0}}, {}));
  EXPECT_ANY_THROW(TokenBatches({{3, 3}}, {.min_rows = 2}));
}

}  // namespace
}  // namespace contextpool::testing
