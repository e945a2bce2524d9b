// EXIF keeps a picture's orientation in a TIFF structure: a byte order ("II" or "MM"), 42, the offset of a directory;
// in it a count and entries of 12 bytes: tag, type, count, value.
#include "data/images/source.h"

namespace contextpool::data {
namespace {

constexpr std::size_t kHeader = 8, kEntry = 12;
constexpr std::uint32_t kMagic = 42, kOrientation = 0x0112, kShort = 3, kLong = 4;

struct Reader {
  std::span<const std::byte> bytes;
  bool little;

  std::uint32_t number(std::size_t at, std::size_t size) const {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i)
      value = value << 8 | std::to_integer<std::uint32_t>(bytes[at + (little ? size - 1 - i : i)]);
    return value;
  }
};

}  // namespace

int orientation_in_exif(std::span<const std::byte> tiff) {
  if (tiff.size() < kHeader || tiff[0] != tiff[1]) return 1;
  const bool little = tiff[0] == std::byte{'I'};
  if (!little && tiff[0] != std::byte{'M'}) return 1;
  const Reader reader{tiff, little};
  const std::size_t directory = reader.number(4, 4);
  if (reader.number(2, 2) != kMagic || directory > tiff.size() - 2) return 1;
  const auto entries = tiff.size() - directory - 2;
  for (std::size_t k = 0; k < reader.number(directory, 2) && (k + 1) * kEntry <= entries; ++k) {
    const auto at = directory + 2 + k * kEntry;
    if (reader.number(at, 2) != kOrientation) continue;
    const auto type = reader.number(at + 2, 2);
    if ((type != kShort && type != kLong) || reader.number(at + 4, 4) != 1) return 1;
    const auto value = reader.number(at + 8, type == kShort ? 2 : 4);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace contextpool::data
