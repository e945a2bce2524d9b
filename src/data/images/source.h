// What decode.cpp asks of a file format. Boxes and sizes are of the stored picture, before its orientation is applied.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "contextpool/data/images/decode.h"

namespace contextpool::data {

class ImageDecoder::Source {
 public:
  Source() = default;
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  std::int64_t width = 0;
  std::int64_t height = 0;
  int orientation = 1;

  // Pixels of `box` of the picture at 1/denominator of its size, rounded up.
  virtual Image read(const Box& box, int denominator) = 0;
  virtual bool can_reduce() const { return false; }
};

// The header is read and the size checked.
std::unique_ptr<ImageDecoder::Source> open_jpeg(std::span<const std::byte> bytes, const ImageLimits& limits);
std::unique_ptr<ImageDecoder::Source> open_png(std::span<const std::byte> bytes, const ImageLimits& limits);

// Throws if a picture of this size is refused.
void check_size(std::int64_t width, std::int64_t height, const ImageLimits& limits);

// The orientation in a TIFF structure as EXIF has it; 1 if there is none or it makes no sense.
int orientation_in_exif(std::span<const std::byte> tiff);

// What a C library says, fixed in size because longjmp runs no destructors; printable, one line.
class Reason {
 public:
  void set(const char* text);
  std::string text() const { return text_.data(); }
  bool empty() const { return text_[0] == '\0'; }

 private:
  std::array<char, 200> text_{};
};

}  // namespace contextpool::data
