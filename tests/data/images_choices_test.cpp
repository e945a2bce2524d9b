// What augmentation chooses: pure functions of (seed, epoch, index), distributed as timm's and torchvision's.
#include "contextpool/data/images/choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "contextpool/data/random.h"
#include "data/images/resample.h"
#include "files.h"

namespace contextpool::testing {
namespace {

using data::Box;
using data::Draws;
using data::OperationKind;
using data::Purpose;

constexpr std::int64_t kSeed = 3;

Draws draws(std::int64_t index, Purpose purpose, std::int64_t epoch = 0) { return {kSeed, epoch, index, purpose}; }

bool inside(const Box& box, std::int64_t width, std::int64_t height) {
  return box.left >= 0 && box.top >= 0 && box.width >= 1 && box.height >= 1 && box.left + box.width <= width &&
         box.top + box.height <= height;
}

// The largest distance of the sample's distribution from the uniform one, times sqrt(n): above 1.95 once in a thousand.
double from_uniform(std::vector<double> sample, double low, double high) {
  std::sort(sample.begin(), sample.end());
  const auto n = static_cast<double>(sample.size());
  double worst = 0;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const double p = (sample[i] - low) / (high - low);
    worst = std::max({worst, std::abs(p - static_cast<double>(i) / n), std::abs(p - static_cast<double>(i + 1) / n)});
  }
  return worst * std::sqrt(n);
}

TEST(ImageDraws, AreAFunctionOfAllFourNumbers) {
  std::set<std::uint64_t> seen;
  for (const std::int64_t seed : {0, 1})
    for (const std::int64_t epoch : {0, 1})
      for (const std::int64_t index : {0, 1})
        for (const auto purpose : {Purpose::crop, Purpose::flip}) {
          Draws one(seed, epoch, index, purpose), two(seed, epoch, index, purpose);
          EXPECT_EQ(one.bits(), two.bits());
          seen.insert(one.bits());
        }
  EXPECT_EQ(seen.size(), 16U);
}

TEST(ImageDraws, NormalAndBetaHaveTheirMoments) {
  constexpr int kDraws = 40'000;
  Draws source = draws(0, Purpose::mix);
  double mean = 0, square = 0, fourth = 0, beta = 0, beta_square = 0, one = 0, one_square = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = source.normal(), b = source.beta(0.8, 0.8), c = source.beta(1, 1);
    mean += x / kDraws;
    square += x * x / kDraws;
    fourth += x * x * x * x / kDraws;
    beta += b / kDraws;
    beta_square += b * b / kDraws;
    one += c / kDraws;
    one_square += c * c / kDraws;
  }
  EXPECT_NEAR(mean, 0, 0.02);
  EXPECT_NEAR(square, 1, 0.03);
  EXPECT_NEAR(fourth, 3, 0.25);
  EXPECT_NEAR(beta, 0.5, 0.006);
  EXPECT_NEAR(beta_square - beta * beta, 1 / (4 * (2 * 0.8 + 1)), 0.003);
  EXPECT_NEAR(one, 0.5, 0.006);
  EXPECT_NEAR(one_square, 1.0 / 3, 0.006);
}

TEST(RandomResizedCrop, AreaIsUniformAndRatioLogUniformWhereEverythingFits) {
  const data::CropOptions options{.min_area = 0.08, .max_area = 0.5};
  std::vector<double> areas, ratios, places;
  for (std::int64_t i = 0; i < 5000; ++i) {
    const auto box = data::random_resized_crop(20'000, 20'000, options, draws(i, Purpose::crop));
    ASSERT_TRUE(inside(box, 20'000, 20'000));
    areas.push_back(static_cast<double>(box.width * box.height) / 4e8);
    ratios.push_back(std::log(static_cast<double>(box.width) / static_cast<double>(box.height)));
    places.push_back((static_cast<double>(box.left) + 0.5) / static_cast<double>(20'000 - box.width + 1));
  }
  EXPECT_LT(from_uniform(areas, 0.08, 0.5), 1.95);
  EXPECT_LT(from_uniform(ratios, std::log(0.75), std::log(4.0 / 3)), 1.95);
  EXPECT_LT(from_uniform(places, 0, 1), 1.95);
}

TEST(RandomResizedCrop, FallsBackToTheCentreAndStaysInsideEveryPicture) {
  const data::CropOptions all{.min_area = 1, .max_area = 1};
  EXPECT_EQ(data::random_resized_crop(1000, 30, all, draws(0, Purpose::crop)), (Box{480, 0, 40, 30}));
  EXPECT_EQ(data::random_resized_crop(30, 1000, all, draws(0, Purpose::crop)), (Box{0, 480, 30, 40}));
  for (std::int64_t i = 0; i < 2000; ++i) {
    const auto width = 1 + i % 7, height = 1 + i % 45;
    EXPECT_TRUE(inside(data::random_resized_crop(width, height, {}, draws(i, Purpose::crop)), width, height));
  }
}

TEST(RepeatedAugmentation, ShowsCopiesSideBySideWithTheirOwnChoices) {
  EXPECT_EQ(data::repeated(7, 3).place, 2);
  EXPECT_EQ(data::repeated(7, 3).copy, 1);
  EXPECT_EQ(data::repeated_epoch(1'281'167), 1'281'024);
  EXPECT_EQ(data::repeated_epoch(100), 100);
  std::set<std::int64_t> indices;
  for (std::int64_t place = 0; place < 300; ++place) {
    const auto [picture, copy] = data::repeated(place, 3);
    indices.insert(data::index_of_copy(picture, copy));
  }
  EXPECT_EQ(indices.size(), 300U);
  EXPECT_EQ(data::index_of_copy(5, 0), 5);
}

TEST(RandAugment, DrawsEveryOperationAsOftenAtStrengthNine) {
  constexpr int kPictures = 20'000;
  std::map<OperationKind, int> count;
  std::map<OperationKind, double> sum, sign;
  for (std::int64_t i = 0; i < kPictures; ++i)
    for (const auto& operation : data::rand_augment({}, draws(i, Purpose::operations))) {
      ++count[operation.kind];
      sum[operation.kind] += std::abs(operation.argument);
      sign[operation.kind] += operation.argument < 0 ? -1 : 1;
    }
  ASSERT_EQ(count.size(), 15U);
  double chi_square = 0;
  const double expected = kPictures / 15.0;  // two layers, half of them done
  for (const auto& [kind, n] : count) chi_square += std::pow(n - expected, 2) / expected;
  EXPECT_LT(chi_square, 40);  // 14 degrees of freedom: once in four thousand
  const auto mean = [&](OperationKind kind) { return sum[kind] / count[kind]; };
  EXPECT_NEAR(mean(OperationKind::rotate), 27, 0.2);
  EXPECT_NEAR(mean(OperationKind::shear_x), 0.27, 0.002);
  EXPECT_NEAR(mean(OperationKind::translate_y), 0.405, 0.003);
  EXPECT_NEAR(mean(OperationKind::posterize), 0.98, 0.04);  // 4 - 3, or 4 - 4 at strength 10, which is one in 44
  EXPECT_NEAR(mean(OperationKind::solarize_add), 98.5, 1);
  for (const auto kind : {OperationKind::rotate, OperationKind::shear_y, OperationKind::translate_x})
    EXPECT_LT(std::abs(sign[kind]), 4 * std::sqrt(count[kind]));
  double least = 10, most = 0;
  for (std::int64_t i = 0; i < kPictures; ++i)
    for (const auto& operation : data::rand_augment({}, draws(i, Purpose::operations)))
      if (operation.kind == OperationKind::colour) {
        least = std::min(least, operation.argument);
        most = std::max(most, operation.argument);
      }
  EXPECT_GE(least, 0.1);
  EXPECT_NEAR(most, 1.9, 1e-9);
}

TEST(RandAugment, ReadsTimmsNames) {
  const auto options = data::rand_augment_named("rand-m7.5-mstd0.5-n3-p0.7-inc1");
  EXPECT_EQ(options.magnitude, 7.5);
  EXPECT_EQ(options.deviation, 0.5);
  EXPECT_EQ(options.layers, 3);
  EXPECT_EQ(options.probability, 0.7);
  EXPECT_EQ(data::rand_augment_named("rand-m9-mstd0.5-inc1").layers, 2);
  for (const auto* bad : {"", "auto", "rand", "rand-m9", "rand-m11-inc1", "rand-x3-inc1", "rand-m-inc1",
                          "rand-m9x-inc1", "rand_m9-inc1", "rand-n1.5-inc1", "rand-"}) {
    const auto message = message_of([&] { data::rand_augment_named(bad); });
    EXPECT_NE(message.find("expected something like \"rand-m9-mstd0.5-inc1\""), std::string::npos) << message;
  }
}

TEST(ColourJitter, HasThreeFactorsInEveryOrder) {
  std::set<std::vector<int>> orders;
  std::vector<double> factors;
  for (std::int64_t i = 0; i < 500; ++i) {
    std::vector<int> order;
    for (const auto& operation : data::colour_jitter(0.4, draws(i, Purpose::operations))) {
      order.push_back(static_cast<int>(operation.kind));
      factors.push_back(operation.argument);
    }
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 6U);
  EXPECT_LT(from_uniform(factors, 0.6, 1.4), 1.95);
}

TEST(RandomErasing, HappensAsOftenAsAskedForInsideThePicture) {
  int erased = 0;
  std::vector<double> areas;
  for (std::int64_t i = 0; i < 8000; ++i) {
    const auto box = data::random_erasing(224, 224, {}, draws(i, Purpose::erase));
    if (box.width == 0) continue;
    ++erased;
    ASSERT_TRUE(inside(box, 224, 224) && box.width < 224 && box.height < 224);
    areas.push_back(static_cast<double>(box.width * box.height) / (224.0 * 224.0));
  }
  EXPECT_NEAR(erased, 2000, 160);
  EXPECT_LT(from_uniform(areas, 0.02, 1.0 / 3), 1.95);  // an attempt in a hundred does not fit
}

TEST(Mix, SwitchesBetweenMixupAndCutMixWhoseLambdaIsTheAreaLeft) {
  int cut = 0;
  double lambda = 0;
  for (std::int64_t i = 0; i < 4000; ++i) {
    const auto mix = data::choose_mix(32, 24, {}, draws(i, Purpose::mix));
    ASSERT_TRUE(mix.lambda >= 0 && mix.lambda <= 1);
    if (mix.box == Box{}) {
      lambda += mix.lambda;
      continue;
    }
    ++cut;
    EXPECT_DOUBLE_EQ(mix.lambda, 1 - static_cast<double>(mix.box.width * mix.box.height) / (32 * 24));
    EXPECT_TRUE(mix.box.left + mix.box.width <= 32 && mix.box.top + mix.box.height <= 24);
  }
  EXPECT_NEAR(cut, 2000, 150);
  EXPECT_NEAR(lambda / (4000 - cut), 0.5, 0.03);
  EXPECT_EQ(data::choose_mix(32, 32, {.mixup = 0, .cutmix = 0}, draws(0, Purpose::mix)).lambda, 1);
  EXPECT_EQ(data::choose_mix(32, 32, {.probability = 0}, draws(0, Purpose::mix)).lambda, 1);
}

// Both ways of computing on the same memory, up to its last byte.
TEST(Resample, HasTheSameBitsWithAndWithoutVectors) {
  for (const std::int64_t width : {1, 2, 3, 11, 40, 97}) {
    for (const std::int64_t out : {1, 5, 64}) {
      constexpr std::int64_t kHeight = 7;
      std::vector<std::uint8_t> in(static_cast<std::size_t>(3 * width * kHeight));
      for (std::size_t k = 0; k < in.size(); ++k) in[k] = static_cast<std::uint8_t>(data::random_bits({k, 1}));
      data::resample::Taps taps;
      taps.most = std::min<std::int64_t>(width, 5);
      for (std::int64_t i = 0; i < out; ++i) {
        const auto count = 1 + i % taps.most;
        taps.ranges.push_back({std::min(width - count, i * width / out), count});
        for (std::int64_t j = 0; j < taps.most; ++j)
          taps.weights.push_back(
              j < count ? static_cast<std::int32_t>(data::below(3 << 20, data::random_bits({7, 11}))) - (1 << 19) : 0);
      }
      std::vector<std::uint8_t> a(static_cast<std::size_t>(3 * out * kHeight)), b(a);
      data::resample::rows({in.data(), width, kHeight, static_cast<std::int64_t>(in.size())}, taps, out, a.data());
      data::resample::plain_rows({in.data(), width, kHeight, static_cast<std::int64_t>(in.size())}, taps, out,
                                 b.data());
      EXPECT_EQ(a, b);
      data::resample::columns({in.data(), kHeight, width, static_cast<std::int64_t>(in.size())}, taps, out, a.data());
      data::resample::plain_columns({in.data(), kHeight, width, static_cast<std::int64_t>(in.size())}, taps, out,
                                    b.data());
      EXPECT_EQ(a, b);
    }
  }
}

}  // namespace
}  // namespace contextpool::testing
