// data::make_batch: a pure function of (seed, step), the same rows whoever takes them, windows spread over the split.
#include "contextpool/data/batch.h"

#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "contextpool/data/random.h"
#include "files.h"

namespace contextpool::testing {
namespace {

using data::Rows;
using data::Split;
using data::Text;

constexpr std::int64_t kLength = 7, kSeed = 5;

// Symbol i of the file is i mod 251, so a window says where it came from.
std::string counting(std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += static_cast<char>(i % 251);
  return text;
}

TEST(Batch, TargetIsInputOneLaterAndBothAreOfTheText) {
  const Folder folder;
  const Text text(folder.write("a.txt", counting(2000)), "bytes");
  const auto batch = make_batch(text, Split::train, kLength, kSeed, 3, {0, 16});
  EXPECT_EQ(batch.input.sizes(), (std::vector<std::int64_t>{16, kLength}));
  EXPECT_TRUE(batch.target.eq(batch.input.add(1).remainder(251)).all().item<bool>());
}

TEST(Batch, DependsOnSeedAndStepOnly) {
  const Folder folder;
  const Text text(folder.write("a.txt", counting(2000)), "bytes");
  const auto input = [&](std::int64_t seed, std::int64_t step) {
    return make_batch(text, Split::train, kLength, seed, step, {0, 16}).input;
  };
  const auto first = input(kSeed, 3);
  input(kSeed, 4);
  EXPECT_TRUE(first.equal(input(kSeed, 3)));
  EXPECT_FALSE(first.equal(input(kSeed, 4)));
  EXPECT_FALSE(first.equal(input(kSeed + 1, 3)));
}

TEST(Batch, RanksAndMicroBatchesShareOneBatch) {
  const Folder folder;
  const Text text(folder.write("a.txt", counting(2000)), "bytes");
  constexpr std::int64_t kRows = 11;
  const auto whole = make_batch(text, Split::train, kLength, kSeed, 9, {0, kRows}).input;
  for (const std::int64_t ranks : {1, 2, 3}) {
    for (const std::int64_t micro : {1, 2}) {
      std::vector<at::Tensor> parts;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        for (std::int64_t m = 0; m < micro; ++m) {
          const auto rows = data::part_of(data::part_of({0, kRows}, rank, ranks), m, micro);
          parts.push_back(make_batch(text, Split::train, kLength, kSeed, 9, rows).input);
        }
      }
      EXPECT_TRUE(at::cat(parts).equal(whole)) << ranks << " ranks, " << micro << " micro-batches";
    }
  }
}

TEST(Batch, WindowsReachEveryPlaceOfTheSplitAndNoOther) {
  const Folder folder;
  const Text text(folder.write("a.txt", counting(200)), "bytes");  // train is 180 symbols: 173 places to start
  std::set<std::int64_t> starts;
  for (std::int64_t step = 0; step < 200; ++step) {
    const auto batch = make_batch(text, Split::train, kLength, kSeed, step, {0, 16});
    for (std::int64_t r = 0; r < 16; ++r) starts.insert(batch.input[r][0].item<std::int64_t>());
  }
  EXPECT_EQ(starts.size(), 180U - kLength);
  EXPECT_EQ(*starts.begin(), 0);
  EXPECT_EQ(*starts.rbegin(), 180 - kLength - 1);
}

TEST(Batch, ATextShorterThanAWindowIsAnError) {
  const Folder folder;
  const auto path = folder.write("a.txt", counting(100));
  const Text text(path, "bytes");
  EXPECT_NO_THROW(make_batch(text, Split::train, 89, kSeed, 0, {0, 1}));
  const auto message = message_of([&] { make_batch(text, Split::train, 90, kSeed, 0, {0, 1}); });
  EXPECT_NE(message.find(path), std::string::npos) << message;
  EXPECT_NE(message.find("has 90 symbols, too few for a window of 90"), std::string::npos) << message;
}

TEST(Random, IsSpreadEvenly) {
  constexpr int kBins = 10, kDraws = 100'000;
  std::vector<double> count(kBins);
  for (int i = 0; i < kDraws; ++i)
    count[data::below(kBins, data::random_bits({1, static_cast<std::uint64_t>(i)}))] += 1;
  double chi_square = 0;
  const double expected = static_cast<double>(kDraws) / kBins;
  for (const auto c : count) chi_square += std::pow(c - expected, 2) / expected;
  EXPECT_LT(chi_square, 33.7);  // 9 degrees of freedom: once in ten thousand
  EXPECT_NE(data::random_bits({1, 2}), data::random_bits({2, 1}));
  EXPECT_EQ(data::below(1, ~0ULL), 0);
}

}  // namespace
}  // namespace contextpool::testing
