// JPEG and PNG files to pictures, as Pillow's open(...).convert("RGB") shows them: grey and palettes become colours,
// alpha is dropped, 16 bits are cut to 8, CMYK is converted. Unlike there, EXIF's orientation is applied. The bytes may
// come from anybody: sizes are checked against limits before memory is taken, and a file that is damaged or cut short
// is an ImageError, never a picture with parts missing. No torch needed; all of it may run on many threads at once.
//
// The bits are those of the libjpeg-turbo in use, with its defaults (exact DCT, smooth upsampling), and a crop has the
// bits of that part of the whole picture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "contextpool/data/images/image.h"

namespace contextpool::data {

struct ImageLimits {
  std::int64_t max_width = 65'500;  // JPEG's own limits
  std::int64_t max_height = 65'500;
  std::int64_t max_pixels = 89'478'485;  // 256 MiB of them, where Pillow begins to warn
};

enum class ImageFormat { jpeg, png };

struct ImageInfo {
  ImageFormat format;
  std::int64_t width;  // as shown, after the orientation is applied
  std::int64_t height;
  int orientation;  // EXIF's, 1 ... 8; 1 where nothing is said
};

// A file whose header has been read. The bytes must outlive it.
class ImageDecoder {
 public:
  explicit ImageDecoder(std::span<const std::byte> bytes, const ImageLimits& limits = {});
  ~ImageDecoder();
  ImageDecoder(ImageDecoder&&) noexcept;
  ImageDecoder& operator=(ImageDecoder&&) noexcept;

  const ImageInfo& info() const { return info_; }
  // Once a decoder: the whole picture, or the pixels of `crop`. Nothing is read past the crop's last row, so damage
  // behind it is not seen.
  Image decode();
  Image decode(const Box& crop);

  // For training: the part `crop`, which will be resized to width x height. Where it is at least twice (four times) as
  // large, a JPEG is decoded at half (a quarter of) its size. `left` ... `bottom` are where the crop lies in `image`.
  struct Region {
    Image image;
    double left, top, right, bottom;
  };
  Region decode_region(const Box& crop, std::int64_t width, std::int64_t height);

  class Source;  // of one format

 private:
  std::unique_ptr<Source> source_;
  ImageInfo info_{};
};

// The whole picture, or a part of it, from the bytes of a file.
Image decode(std::span<const std::byte> bytes, const ImageLimits& limits = {});
Image decode(std::span<const std::byte> bytes, const ImageLimits& limits, const Box& crop);

}  // namespace contextpool::data
