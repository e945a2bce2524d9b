// Batches decoded on threads, views, and decoding as C++ calls it.
#include "contextpool/data/images/loader.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>

#include "contextpool/data/images/folder.h"
#include "files.h"
#include "pictures.h"

namespace contextpool::testing {
namespace {

namespace fs = std::filesystem;
using data::PictureFolder;
using data::ThreadPool;

constexpr std::int64_t kSeed = 4, kSize = 24;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(ThreadPool, DoesAllWorkOnceAndReportsTheLowestFailure) {
  for (const std::int64_t threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int round = 0; round < 50; ++round) {
      std::vector<std::atomic<int>> done(37);
      pool.run(37, [&](std::int64_t i) { ++done[static_cast<std::size_t>(i)]; });
      for (const auto& n : done) EXPECT_EQ(n, 1);
    }
    std::atomic<int> done = 0;
    const auto message = message_of([&] {
      pool.run(40, [&](std::int64_t i) {
        ++done;
        if (i % 10 == 7) throw std::runtime_error("bad " + std::to_string(i));
      });
    });
    EXPECT_EQ(message, "bad 7");
    EXPECT_EQ(done, 40);
    pool.run(0, [](std::int64_t) { FAIL(); });
  }
  EXPECT_THROW(ThreadPool(0), io::Error);
}

struct Set {
  explicit Set(int count) {
    for (int k = 0; k < count; ++k) {
      const auto name = std::string(1, static_cast<char>('a' + k % 3));
      fs::create_directories(folder.path(name));
      const auto image = pattern(40 + 3 * k, 70 - k, k);
      folder.write(name + "/" + std::to_string(k) + (k % 2 == 0 ? ".jpg" : ".png"),
                   k % 2 == 0 ? jpeg_of(image) : png_of(image));
    }
  }
  Folder folder;
};

data::ViewOptions small() {
  data::ViewOptions options;
  options.size = kSize;
  options.use_rand_augment = true;
  return options;
}

TEST(Loader, BatchesDoNotDependOnThreadsLayoutOrTheRestOfTheBatch) {
  const Set set(12);
  const PictureFolder pictures(set.folder.path());
  std::vector<data::PictureRow> rows;
  for (std::int64_t i = 0; i < 12; ++i) rows.push_back({11 - i, 3, i % 2});
  const auto load = [&](std::int64_t threads, std::span<const data::PictureRow> some, at::MemoryFormat format) {
    ThreadPool pool(threads);
    const auto count = static_cast<std::int64_t>(some.size());
    auto pixels = torch::empty({count, 3, kSize, kSize}, torch::kByte).contiguous(format);
    auto labels = torch::empty({count}, torch::kLong);
    EXPECT_TRUE(data::load_for_training(pictures, some, small(), kSeed, pool, pixels, labels).empty());
    return std::pair(pixels.contiguous(), labels);
  };
  const auto [pixels, labels] = load(1, rows, at::MemoryFormat::Contiguous);
  for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(labels[i].item<std::int64_t>(), pictures.label(11 - i));
  const auto [more, same] = load(4, rows, at::MemoryFormat::ChannelsLast);
  EXPECT_TRUE(more.equal(pixels) && same.equal(labels));
  const auto [part, few] = load(2, std::span(rows).subspan(5, 3), at::MemoryFormat::Contiguous);
  EXPECT_TRUE(part.equal(pixels.slice(0, 5, 8)));
  // Copies of one picture are augmented differently.
  const std::vector<data::PictureRow> copies = {{2, 3, 0}, {2, 3, 1}, {2, 4, 0}};
  const auto [three, all] = load(1, copies, at::MemoryFormat::Contiguous);
  EXPECT_FALSE(three[0].equal(three[1]) || three[0].equal(three[2]));
}

TEST(Loader, BrokenPicturesAreNamedAndReplacedInTrainingOrLeftOutInEvaluation) {
  const Set set(6);  // a/0.jpg a/3.png b/1.png b/4.jpg c/2.jpg c/5.png
  set.folder.write("b/1.png", png_of(pattern(30, 30)).substr(0, 100));
  const PictureFolder pictures(set.folder.path());
  ThreadPool pool(2);
  const std::vector<data::PictureRow> rows = {{1}, {2}, {3}};
  auto pixels = torch::full({3, 3, kSize, kSize}, 7, torch::kByte), labels = torch::full({3}, 7, torch::kLong);
  const auto broken = data::load_for_training(pictures, rows, small(), kSeed, pool, pixels, labels);
  ASSERT_EQ(broken.size(), 1U);
  EXPECT_EQ(broken[0].picture, 2);
  EXPECT_EQ(broken[0].reason.find(set.folder.path("b/1.png: PNG is damaged or cut short")), 0U) << broken[0].reason;
  EXPECT_TRUE(labels.equal(torch::tensor({0, 1, 1}, torch::kLong)));
  EXPECT_TRUE(pixels[1].equal(pixels[2]));  // picture 3 in both rows
  const auto left_out = data::load_for_evaluation(pictures, rows, small(), pool, pixels, labels);
  ASSERT_EQ(left_out.size(), 1U);
  EXPECT_TRUE(labels.equal(torch::tensor({0, -1, 1}, torch::kLong)));
  EXPECT_EQ(pixels[1].max().item<std::int64_t>(), 0);
  EXPECT_GT(pixels[2].max().item<std::int64_t>(), 0);
}

TEST(Loader, ACollectionOfBrokenPicturesIsAnError) {
  const Folder folder;
  fs::create_directories(folder.path("a"));
  folder.write("a/0.jpg", "text");
  const PictureFolder pictures(folder.path());
  ThreadPool pool(2);
  const std::vector<data::PictureRow> rows = {{0}, {0}};
  auto pixels = torch::empty({2, 3, kSize, kSize}, torch::kByte), labels = torch::empty({2}, torch::kLong);
  const auto message =
      message_of([&] { data::load_for_training(pictures, rows, small(), kSeed, pool, pixels, labels); });
  EXPECT_NE(message.find("16 pictures in a row cannot be read, the first: " + folder.path("a/0.jpg")),
            std::string::npos)
      << message;
  const std::vector<data::PictureRow> outside = {{0}, {1}};
  EXPECT_THROW(data::load_for_evaluation(pictures, outside, small(), pool, pixels, labels), c10::ValueError);
  EXPECT_THROW(data::load_for_evaluation(pictures, rows, small(), pool, pixels.slice(2, 1), labels), c10::ValueError);
}

TEST(Loader, RecordsOfCifarBecomeTensorsThatOwnTheirMemory) {
  std::string bytes;
  for (int i = 0; i < 3; ++i) {
    bytes += static_cast<char>(i);
    bytes.append(data::kCifarBytes, static_cast<char>(7 * i));
  }
  const auto [pictures, labels] = data::as_tensors(data::parse_cifar(bytes_of(bytes), 10, "a.bin"));
  EXPECT_EQ(pictures.sizes(), (std::vector<std::int64_t>{3, 3, 32, 32}));
  EXPECT_TRUE(labels.equal(torch::arange(3, torch::kLong)));
  EXPECT_TRUE(pictures[2].eq(14).all().item<bool>());
}

TEST(View, IsAResizedCropOfThePicture) {
  data::ViewOptions options;
  options.size = kSize;
  options.flip_probability = 0;
  options.filter = data::Filter::bilinear;
  const auto image = pattern(120, 80);
  const auto png = png_of(image);
  data::Image out(kSize, kSize);
  for (std::int64_t i = 0; i < 10; ++i) {
    data::view_for_training(bytes_of(png), options, kSeed, 0, i, out.bytes().data());
    const auto box = data::random_resized_crop(120, 80, options.crop, data::Draws(kSeed, 0, i, data::Purpose::crop));
    const auto want = data::resize(data::crop(image, box), kSize, kSize, options.filter);
    EXPECT_TRUE(std::equal(want.bytes().begin(), want.bytes().end(), out.bytes().begin()));
  }
  options.flip_probability = 1;
  data::Image flipped(kSize, kSize);
  data::view_for_training(bytes_of(png), options, kSeed, 0, 9, flipped.bytes().data());
  data::flip(flipped);
  EXPECT_TRUE(std::equal(flipped.bytes().begin(), flipped.bytes().end(), out.bytes().begin()));
}

// Decoded at 1/2 or 1/4 and then resized, a smooth picture is nearly the one decoded whole and resized.
TEST(View, ReducedDecodingShowsTheSamePlace) {
  data::Image image(400, 300);
  for (std::int64_t y = 0; y < 300; ++y)
    for (std::int64_t x = 0; x < 400; ++x) {
      image.row(y)[3 * x] = static_cast<std::uint8_t>(x / 2);
      image.row(y)[3 * x + 1] = static_cast<std::uint8_t>(y / 2);
      image.row(y)[3 * x + 2] = static_cast<std::uint8_t>((x + y) / 3);
    }
  const auto jpeg = jpeg_of(image);
  for (const std::int64_t size : {32, 60}) {
    for (const auto& box : {data::Box{0, 0, 400, 300}, data::Box{31, 17, 251, 243}, data::Box{150, 40, 250, 260}}) {
      const auto region = data::ImageDecoder(bytes_of(jpeg)).decode_region(box, size, size);
      EXPECT_LT(region.image.width(), box.width / (size == 32 ? 3 : 1.9));
      const auto reduced = data::resize(region.image, size, size, data::Filter::bicubic,
                                        {region.left, region.top, region.right, region.bottom});
      const auto whole = data::resize(data::decode(bytes_of(jpeg), {}, box), size, size, data::Filter::bicubic);
      for (std::size_t k = 0; k < whole.bytes().size(); ++k)
        ASSERT_NEAR(whole.bytes()[k], reduced.bytes()[k], 2) << size << " at byte " << k;
    }
  }
}

TEST(Decode, RefusesCropsOutsideAndASecondPicture) {
  const auto jpeg = jpeg_of(pattern(30, 20));
  for (const auto& box :
       {data::Box{-1, 0, 5, 5}, data::Box{0, 0, 31, 5}, data::Box{0, 15, 5, 6}, data::Box{3, 3, 0, 1}}) {
    const auto message = message_of([&] { data::decode(bytes_of(jpeg), {}, box); });
    EXPECT_NE(message.find("does not lie inside the picture of 30 x 20"), std::string::npos) << message;
  }
  data::ImageDecoder decoder(bytes_of(jpeg));
  decoder.decode();
  EXPECT_THROW(decoder.decode(), data::ImageError);
  data::ImageLimits limits;
  limits.max_pixels = 599;
  EXPECT_THROW(data::decode(bytes_of(jpeg), limits), data::ImageError);
  limits.max_pixels = 600;
  EXPECT_NO_THROW(data::decode(bytes_of(jpeg), limits));
}

}  // namespace
}  // namespace contextpool::testing
