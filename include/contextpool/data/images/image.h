// A picture in memory: 8 bits a channel, red, green, blue, rows from the top, nothing between pixels or rows. And what
// is thrown about bytes that are no such picture. No torch needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "contextpool/io/error.h"

namespace contextpool::data {

inline constexpr std::int64_t kColours = 3;

// Bytes that are not a picture we can show: damaged, cut short, too large, or of another kind. One line, without the
// file's name: whoever knows it puts it in front.
class ImageError : public io::Error {
 public:
  using io::Error::Error;
};

// Pixels [left, left + width) x [top, top + height).
struct Box {
  std::int64_t left = 0;
  std::int64_t top = 0;
  std::int64_t width = 0;
  std::int64_t height = 0;

  bool operator==(const Box&) const = default;
};

class Image {
 public:
  Image() = default;
  Image(std::int64_t width, std::int64_t height)  // the pixels are not set
      : width_(width),
        height_(height),
        pixels_(std::make_unique_for_overwrite<std::uint8_t[]>(static_cast<std::size_t>(kColours * width * height))) {}

  std::int64_t width() const { return width_; }
  std::int64_t height() const { return height_; }
  std::int64_t stride() const { return kColours * width_; }  // bytes a row
  std::uint8_t* row(std::int64_t y) { return pixels_.get() + y * stride(); }
  const std::uint8_t* row(std::int64_t y) const { return pixels_.get() + y * stride(); }
  std::span<std::uint8_t> bytes() { return {pixels_.get(), static_cast<std::size_t>(stride() * height_)}; }
  std::span<const std::uint8_t> bytes() const { return {pixels_.get(), static_cast<std::size_t>(stride() * height_)}; }
  Image copy() const;

 private:
  std::int64_t width_ = 0;
  std::int64_t height_ = 0;
  std::unique_ptr<std::uint8_t[]> pixels_;
};

// The part of `image` in `box`, which must lie inside.
Image crop(const Image& image, const Box& box);

}  // namespace contextpool::data
