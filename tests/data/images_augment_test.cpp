// Augmentation in batches beside a loop over pixels; shapes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>

#include "../device.h"
#include "contextpool/data/images/augment_batch.h"
#include "contextpool/data/images/shapes.h"
#include "files.h"

namespace contextpool::testing {
namespace {

constexpr std::int64_t kSeed = 11;

torch::Tensor some_pictures(std::int64_t count, std::int64_t height, std::int64_t width) {
  torch::manual_seed(1);
  return torch::randint(0, 256, {count, 3, height, width}, torch::kByte);
}

std::vector<std::int64_t> numbers(std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 100);
  return all;
}

// Padded, cut out, flipped and normalized, one pixel at a time.
torch::Tensor by_hand(const torch::Tensor& pictures, const torch::Tensor& choices, std::int64_t pad,
                      const data::Normalization& n) {
  const auto height = pictures.size(2), width = pictures.size(3);
  auto out = torch::zeros(pictures.sizes(), torch::kDouble);
  const auto padded = torch::constant_pad_nd(pictures, {pad, pad, pad, pad}, 0).contiguous();
  for (std::int64_t b = 0; b < pictures.size(0); ++b) {
    const auto left = pad + choices[b][1].item<std::int64_t>(), top = pad + choices[b][2].item<std::int64_t>();
    auto part = padded[b].slice(1, top, top + height).slice(2, left, left + width);
    // A flip after the shift by s shows the shift by s of the mirror image: cut out at the mirrored place.
    if (choices[b][0].item<std::int64_t>() == 1) part = part.flip(2);
    for (int c = 0; c < 3; ++c) out[b][c] = (part[c].to(torch::kDouble) / 255 - n.mean[c]) / n.deviation[c];
  }
  return out;
}

TEST(AugmentBatch, IsAShiftWithPaddingThenAFlipThenNormalization) {
  const auto pictures = some_pictures(40, 9, 13);
  const auto choices = data::choose_for_batch({.pad = 3}, 13, 9, kSeed, 0, numbers(40));
  const auto got = data::augment_batch(there(pictures), choices.to(device()), data::kCifarNormalization);
  ASSERT_EQ(got.scalar_type(), torch::kFloat);
  const auto want = by_hand(pictures, choices.numbers, 3, data::kCifarNormalization);
  EXPECT_LT(got.cpu().to(torch::kDouble).sub(want).abs().max().item<double>(), 2e-6);
  const auto flips = choices.numbers.select(1, 0).sum().item<std::int64_t>();
  EXPECT_TRUE(flips > 8 && flips < 32) << flips;
  EXPECT_EQ(choices.numbers.select(1, 1).abs().max().item<std::int64_t>(), 3);
}

TEST(AugmentBatch, HasTheBitsOfTheCpuOnEveryDevice) {
  const auto pictures = some_pictures(64, 32, 32);
  const auto choices = data::choose_for_batch({.erase = {.probability = 0.7}}, 32, 32, kSeed, 2, numbers(64));
  const auto here = data::augment_batch(pictures, choices, {});
  const auto elsewhere = data::augment_batch(there(pictures), choices.to(device()), {});
  EXPECT_TRUE(here.equal(elsewhere.cpu()));
  for (std::int64_t i = 0; i < 8; ++i) {
    const auto mix = data::choose_mix(32, 32, {}, data::Draws(kSeed, 0, i, data::Purpose::mix));
    EXPECT_TRUE(data::mix_batch(here, mix).equal(data::mix_batch(elsewhere, mix).cpu()));
  }
}

TEST(AugmentBatch, TakesRowsOfAWholeDataSetAndDependsOnTheIndexOnly) {
  const auto pictures = there(some_pictures(50, 8, 8));
  const auto rows = torch::tensor({7, 3, 7}, torch::kLong);
  const std::vector<std::int64_t> indices = {7, 3, 7};
  const auto choices = data::choose_for_batch({.erase = {.probability = 1}}, 8, 8, kSeed, 1, indices);
  const auto batch = data::augment_batch(pictures, choices.to(device()), {}, there(rows));
  EXPECT_TRUE(batch[0].equal(batch[2]));
  const auto one = data::choose_for_batch({.erase = {.probability = 1}}, 8, 8, kSeed, 1, std::vector<std::int64_t>{3});
  EXPECT_TRUE(batch[1].equal(data::augment_batch(pictures.slice(0, 3, 4), one.to(device()), {})[0]));
  const auto later = data::choose_for_batch({.erase = {.probability = 1}}, 8, 8, kSeed, 2, indices);
  EXPECT_FALSE(later.numbers.equal(choices.numbers));
}

TEST(EraseBatch, PutsNormalNoiseIntoTheBoxAndNowhereElse) {
  const auto choices = data::choose_for_batch({.erase = {.probability = 1}}, 64, 48, kSeed, 0, numbers(60));
  const auto erased = data::erase_batch(there(torch::full({60, 3, 48, 64}, 77.0F)), choices.to(device())).cpu();
  std::vector<torch::Tensor> noise;
  for (std::int64_t b = 0; b < 60; ++b) {
    const auto row = choices.numbers[b];
    const auto at = [&](int k) { return row[k].item<std::int64_t>(); };
    EXPECT_GT(at(5) * at(6), 0);
    const auto box = erased[b].slice(1, at(4), at(4) + at(6)).slice(2, at(3), at(3) + at(5));
    noise.push_back(box.reshape(-1));
    EXPECT_EQ(erased[b].ne(77).sum().item<std::int64_t>(), box.numel());
  }
  const auto all = torch::cat(noise).to(torch::kDouble);
  const auto n = static_cast<double>(all.numel());
  EXPECT_NEAR(all.mean().item<double>(), 0, 4 / std::sqrt(n));
  EXPECT_NEAR(all.var().item<double>(), 1, 6 / std::sqrt(n));
  EXPECT_NEAR(all.pow(4).mean().item<double>(), 3, 40 / std::sqrt(n));
  EXPECT_GT(std::get<0>(at::_unique(all)).numel(), 30'000);  // pixels and colours have numbers of their own
}

TEST(MixBatch, MixesWithTheReverseAndTargetsAlike) {
  const auto batch = there(torch::rand({4, 3, 6, 5}));
  const auto labels = there(torch::tensor({0, 2, 1, 1}, torch::kLong));
  const data::Mix mixup{0.3, {}};
  EXPECT_TRUE(data::mix_batch(batch, mixup).allclose(0.3 * batch + 0.7 * batch.flip(0)));
  const auto target = data::mix_targets(labels, 3, mixup, 0.1).cpu();
  EXPECT_TRUE(target.sum(1).allclose(torch::ones({4})));
  const double off = 0.1 / 3, on = 0.9 + off;
  EXPECT_NEAR(target[0][0].item<double>(), 0.3 * on + 0.7 * off, 1e-6);
  EXPECT_NEAR(target[0][1].item<double>(), 0.7 * on + 0.3 * off, 1e-6);
  const data::Mix cutmix{1 - 6.0 / 30, {1, 2, 3, 2}};
  const auto cut = data::mix_batch(batch, cutmix);
  const auto same = cut.eq(batch).all(1).sum({1, 2}).cpu();
  EXPECT_TRUE(same.eq(30 - 6).all().item<bool>()) << same;
  EXPECT_TRUE(cut[0].slice(1, 2, 4).slice(2, 1, 4).equal(batch[3].slice(1, 2, 4).slice(2, 1, 4)));
}

TEST(AugmentBatch, RefusesWhatItCannotTake) {
  const auto choices = data::choose_for_batch({}, 8, 8, kSeed, 0, numbers(2));
  EXPECT_NE(message_of([&] {
              data::augment_batch(torch::rand({2, 3, 8, 8}), choices, {});
            }).find("uint8 [N, 3, H, W]"),
            std::string::npos);
  EXPECT_NE(message_of([&] { data::augment_batch(some_pictures(3, 8, 8), choices, {}); }).find("int64 [3, 8]"),
            std::string::npos);
  EXPECT_NE(message_of([&] { data::mix_targets(torch::rand({3}), 3, {}, 0); }).find("int64 [B]"), std::string::npos);
}

TEST(Shapes, AreAFunctionOfSeedAndIndex) {
  const auto all = data::make_shapes(1, 0, 200);
  EXPECT_EQ(all.pictures.sizes(), (std::vector<std::int64_t>{200, 3, 32, 32}));
  const auto part = data::make_shapes(1, 50, 20);
  EXPECT_TRUE(part.pictures.equal(all.pictures.slice(0, 50, 70)));
  EXPECT_TRUE(part.labels.equal(all.labels.slice(0, 50, 70)));
  EXPECT_FALSE(data::make_shapes(2, 50, 20).pictures.equal(part.pictures));
  EXPECT_EQ(data::shape_names().size(), 10U);
  EXPECT_EQ(std::get<0>(at::_unique(all.labels)).numel(), 10);
  EXPECT_THROW(data::make_shapes(1, 0, 1, 8), c10::ValueError);
}

// A picture differs from the next of its class more than by noise, and classes can be told by a simple model: the shape
// is there, whatever its colours.
TEST(Shapes, CoverDifferentPartsOfThePicture) {
  const auto shapes = data::make_shapes(5, 0, 400);
  const auto grey = shapes.pictures.to(torch::kFloat).mean(1);
  const auto spread = grey.flatten(1).std(1);
  EXPECT_GT(spread.median().item<double>(), 15);  // noise alone: 7
  const auto mean = grey.mean(0);
  EXPECT_LT(mean.std().item<double>(), 15);  // anywhere, in any colour
}

}  // namespace
}  // namespace contextpool::testing
