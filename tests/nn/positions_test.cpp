// Positions against their formulas in float64, and what rotary positions are for: scores that know distances only.
#include "contextpool/nn/positions.h"

#include <cmath>

#include "expect.h"

namespace contextpool::testing {
namespace {

using nn::Positions;
using nn::PositionsOptions;

TEST(RotaryPositions, TurnPairsOfChannelsByTheirAngle) {
  constexpr int64_t kWidth = 6;
  Positions positions(PositionsOptions{.kind = "rotary", .features = 2 * kWidth, .heads = 2});
  const auto x = random({2, 9, 2, kWidth});
  for (const int64_t first : {0, 70}) {
    const auto got = nn::rotate(x, positions->rotation(x, first));
    auto expected = torch::empty_like(x);
    for (int64_t p = 0; p < 9; ++p) {
      for (int64_t k = 0; k < kWidth / 2; ++k) {
        const double angle = static_cast<double>(first + p) * std::pow(10000.0, -2.0 * static_cast<double>(k) / kWidth);
        const auto a = x.select(1, p).select(-1, 2 * k), b = x.select(1, p).select(-1, 2 * k + 1);
        expected.select(1, p).select(-1, 2 * k) = a * std::cos(angle) - b * std::sin(angle);
        expected.select(1, p).select(-1, 2 * k + 1) = a * std::sin(angle) + b * std::cos(angle);
      }
    }
    EXPECT_LT(difference(got, expected), 1e-14);
  }
}

TEST(RotaryPositions, MakeScoresAFunctionOfDistance) {
  Positions positions(PositionsOptions{.kind = "rotary", .features = 16, .heads = 1});
  const auto q = random({1, 1, 16}), k = random({1, 1, 16});
  const auto score = [&](int64_t at_q, int64_t at_k) {
    return (nn::rotate(q, positions->rotation(q, at_q)) * nn::rotate(k, positions->rotation(k, at_k))).sum();
  };
  for (const int64_t shift : {1, 40, 5000}) {
    EXPECT_LT(difference(score(9 + shift, 2 + shift), score(9, 2)), 1e-11);
    EXPECT_GT(difference(score(9 + shift, 2), score(9, 2)), 1e-3);
  }
}

TEST(RotaryPositions, KeepTheirPrecisionFarOut) {
  constexpr int64_t kFar = 100'000;
  Positions positions(PositionsOptions{.kind = "rotary", .features = 32, .heads = 1});
  const auto x = random({1, 3, 32});
  const auto exact = nn::rotate(x, positions->rotation(x, kFar));
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    const auto narrow = x.to(type);
    const auto got = nn::rotate(narrow, positions->rotation(narrow, kFar));
    EXPECT_EQ(got.scalar_type(), type);
    EXPECT_LT(difference(got, exact), type == torch::kFloat32 ? 1e-6 : 1e-2);
  }
}

TEST(RotaryPositions, DoNotDependOnWhatWasAskedBefore) {
  const auto x = random({1, 5, 8}, torch::kFloat32);
  const PositionsOptions options{.kind = "rotary", .features = 8, .heads = 1};
  Positions used(options), fresh(options);
  for (const int64_t first : {0, 3, 11, 1000, 2}) {
    EXPECT_TRUE(torch::equal(used->rotation(x, first), Positions(options)->rotation(x, first)));
  }
  EXPECT_TRUE(torch::equal(used->rotation(x.to(torch::kFloat64), 2), fresh->rotation(x.to(torch::kFloat64), 2)));
  EXPECT_TRUE(torch::equal(used->add(x), x));
  EXPECT_TRUE(used->parameters().empty());
}

TEST(SinusoidalPositions, AddSinesAndCosines) {
  Positions positions(PositionsOptions{.kind = "sinusoidal", .features = 10, .heads = 2});
  const auto x = random({2, 7, 10});
  for (const int64_t first : {0, 33}) {
    auto expected = x.clone();
    for (int64_t p = 0; p < 7; ++p) {
      for (int64_t k = 0; k < 5; ++k) {
        const double angle = static_cast<double>(first + p) * std::pow(10000.0, -static_cast<double>(2 * k) / 10);
        expected.select(1, p).select(1, 2 * k) += std::sin(angle);
        expected.select(1, p).select(1, 2 * k + 1) += std::cos(angle);
      }
    }
    EXPECT_LT(difference(positions->add(x, first), expected), 1e-14);
  }
  EXPECT_FALSE(positions->rotation(x).defined());
}

TEST(RotaryPositions, ServeTrainingAfterInferenceMode) {
  Positions positions(PositionsOptions{.kind = "rotary", .features = 8, .heads = 2});
  const auto x = random({2, 5, 2, 4});
  {
    const c10::InferenceMode inference;
    positions->rotation(random({2, 5, 8}));
  }
  const auto leaf = x.clone().requires_grad_();
  nn::rotate(leaf, positions->rotation(random({2, 5, 8}))).sum().backward();
  EXPECT_TRUE(leaf.grad().defined());
}

TEST(LearnedPositions, AddTheRowsOfTheirTable) {
  Positions positions(PositionsOptions{.kind = "learned", .features = 4, .heads = 2, .length = 12});
  positions->to(device(), torch::kFloat64);
  const auto weight = positions->named_parameters()["weight"];
  EXPECT_EQ(weight.sizes(), (std::vector<int64_t>{12, 4}));
  const auto x = random({3, 5, 4});
  EXPECT_TRUE(torch::equal(positions->add(x, 7), x + weight.slice(0, 7)));
  EXPECT_FALSE(positions->rotation(x).defined());
}

TEST(LearnedPositions, SayHowManyThereAre) {
  Positions positions(PositionsOptions{.kind = "learned", .features = 4, .heads = 2, .length = 12});
  try {
    positions->add(torch::zeros({1, 5, 4}), 8);
    FAIL() << "13 tokens were accepted";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what_without_backtrace()).find("13 tokens, but only 12"), std::string::npos);
  }
}

TEST(Positions, RefuseWhatTheyCannotDo) {
  EXPECT_THROW(Positions(PositionsOptions{.kind = "rotry"}), c10::Error);
  EXPECT_THROW(Positions(PositionsOptions{.kind = "rotary", .features = 9, .heads = 3}), c10::Error);
  EXPECT_THROW(Positions(PositionsOptions{.kind = "sinusoidal", .features = 9, .heads = 3}), c10::Error);
  EXPECT_THROW(Positions(PositionsOptions{.kind = "rotary", .features = 10, .heads = 3}), c10::Error);
}

}  // namespace
}  // namespace contextpool::testing
