// The decoders of pictures on any bytes: they return a picture of the size that the header says or throw ImageError, a
// crop is a part of the whole, and what is decoded can be resized. CONTEXTPOOL_FUZZ_FORMAT is the start of every input,
// so that each format is fuzzed on its own.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "contextpool/data/images/decode.h"
#include "contextpool/data/images/resize.h"

namespace {

using namespace contextpool::data;

// Not assert: it must hold in every kind of build.
void require(bool good) {
  if (!good) std::abort();
}

constexpr ImageLimits kLimits{2000, 2000, 200'000};

template <class F>
auto or_nothing(F f) -> std::optional<decltype(f())> {
  try {
    return f();
  } catch (const ImageError& error) {
    const std::string_view message = error.what();
    require(message.find('\n') == std::string_view::npos && message.size() < 1000);
    return std::nullopt;
  }
}

void check_crop(std::span<const std::byte> bytes, const Image& whole, std::uint32_t choice) {
  const auto part = [&](std::int64_t size) {
    const auto from = static_cast<std::int64_t>(choice) % size;
    choice /= 7;
    return std::pair(from, 1 + static_cast<std::int64_t>(choice) % (size - from));
  };
  const auto [left, width] = part(whole.width());
  const auto [top, height] = part(whole.height());
  const auto image = or_nothing([&] { return decode(bytes, kLimits, {left, top, width, height}); });
  require(image.has_value());  // the whole could be read
  const auto want = crop(whole, {left, top, width, height});
  require(std::memcmp(image->bytes().data(), want.bytes().data(), want.bytes().size()) == 0);
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string input = CONTEXTPOOL_FUZZ_FORMAT;
  if (size >= input.size()) input.append(reinterpret_cast<const char*>(data) + input.size(), size - input.size());
  const auto bytes = std::as_bytes(std::span(input));
  std::uint32_t choice = 0;
  for (const char c : input) choice = choice * 31 + static_cast<unsigned char>(c);
  const auto info = or_nothing([&] { return ImageDecoder(bytes, kLimits).info(); });
  const auto whole = or_nothing([&] { return decode(bytes, kLimits); });
  if (info) {
    require(info->width * info->height <= kLimits.max_pixels && info->orientation >= 1 && info->orientation <= 8);
    or_nothing([&] {
      const auto region = ImageDecoder(bytes, kLimits).decode_region({0, 0, info->width, info->height}, 9, 7);
      return resize(region.image, 9, 7, Filter::bicubic, {region.left, region.top, region.right, region.bottom});
    });
  }
  if (!whole) return 0;
  require(info && whole->width() == info->width && whole->height() == info->height);
  check_crop(bytes, *whole, choice);
  const auto small =
      resize(*whole, 1 + choice % 20, 1 + choice / 20 % 20, choice % 2 == 0 ? Filter::bilinear : Filter::bicubic);
  require(small.bytes().size() % 3 == 0);
  return 0;
}
