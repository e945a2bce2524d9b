#include "contextpool/data/images/decode.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "data/images/source.h"
#include "io/text.h"

namespace contextpool::data {
namespace {

constexpr std::array<std::string_view, 2> kSignatures = {"\xff\xd8\xff", "\x89PNG\r\n\x1a\n"};

struct Other {
  std::string_view start;
  std::string_view name;
};
constexpr std::array<Other, 6> kOthers = {{{"GIF8", "a GIF"},
                                           {"RIFF", "a WebP or another RIFF file"},
                                           {"BM", "a BMP"},
                                           {"II*", "a TIFF"},
                                           {"MM", "a TIFF"},
                                           {"%PDF", "a PDF"}}};

bool is_text(std::string_view start) {
  return std::all_of(start.begin(), start.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 || byte == '\n' || byte == '\r' || byte == '\t';
  });
}

[[noreturn]] void refuse(std::span<const std::byte> bytes) {
  const std::string wanted = "; expected a JPEG or PNG picture";
  if (bytes.empty()) throw ImageError("the file is empty" + wanted);
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), std::min<std::size_t>(bytes.size(), 16));
  for (const auto& other : kOthers)
    if (start.starts_with(other.start)) throw ImageError("this is " + std::string(other.name) + wanted);
  if (is_text(start)) throw ImageError("this is text that begins with " + io::in_quotes(start) + wanted);
  throw ImageError("the file begins with " + io::in_quotes(start.substr(0, 4)) + wanted);
}

std::unique_ptr<ImageDecoder::Source> open_any(std::span<const std::byte> bytes, const ImageLimits& limits,
                                               ImageFormat& format) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(kSignatures[0])) {
    format = ImageFormat::jpeg;
    return open_jpeg(bytes, limits);
  }
  if (text.starts_with(kSignatures[1])) {
    format = ImageFormat::png;
    return open_png(bytes, limits);
  }
  refuse(bytes);
}

// Pixel (x, y) of the picture upright is pixel (sx, sy) of the one stored: x and y change places (EXIF's 5 ... 8), then
// sx counts from the right (2, 3, 7, 8), then sy from below (3, 4, 6, 7).
struct Turn {
  explicit Turn(int orientation)
      : swapped(orientation >= 5),
        from_right(orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8),
        from_below(orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) {}

  bool swapped, from_right, from_below;

  bool none() const { return !swapped && !from_right && !from_below; }

  Box stored(const Box& upright, std::int64_t width, std::int64_t height) const {  // of the stored picture
    Box box = swapped ? Box{upright.top, upright.left, upright.height, upright.width} : upright;
    if (from_right) box.left = width - box.left - box.width;
    if (from_below) box.top = height - box.top - box.height;
    return box;
  }

  Image upright(Image stored) const {
    if (none()) return stored;
    const auto width = swapped ? stored.height() : stored.width(), height = swapped ? stored.width() : stored.height();
    Image image(width, height);
    for (std::int64_t y = 0; y < height; ++y) {
      auto* out = image.row(y);
      for (std::int64_t x = 0; x < width; ++x, out += kColours) {
        auto sx = swapped ? y : x, sy = swapped ? x : y;
        if (from_right) sx = stored.width() - 1 - sx;
        if (from_below) sy = stored.height() - 1 - sy;
        std::memcpy(out, stored.row(sy) + kColours * sx, kColours);
      }
    }
    return image;
  }
};

void check_inside(const Box& box, std::int64_t width, std::int64_t height) {
  if (box.left >= 0 && box.top >= 0 && box.width > 0 && box.height > 0 && box.width <= width - box.left &&
      box.height <= height - box.top)
    return;
  throw ImageError(io::text("a crop of ", box.width, " x ", box.height, " at (", box.left, ", ", box.top,
                            ") does not lie inside the picture of ", width, " x ", height));
}

std::unique_ptr<ImageDecoder::Source> taken(std::unique_ptr<ImageDecoder::Source>& source) {
  if (source == nullptr) throw ImageError("a decoder gives its picture once");
  return std::move(source);
}

}  // namespace

void check_size(std::int64_t width, std::int64_t height, const ImageLimits& limits) {
  if (width < 1 || height < 1) throw ImageError("a picture without pixels");
  if (width <= limits.max_width && height <= limits.max_height && width <= limits.max_pixels / height) return;
  throw ImageError(io::text("a picture of ", width, " x ", height, " is larger than allowed (", limits.max_width, " x ",
                            limits.max_height, ", ", limits.max_pixels, " pixels)"));
}

void Reason::set(const char* text) {
  std::size_t at = 0;
  for (; at + 1 < text_.size() && text[at] != '\0'; ++at)
    text_[at] = text[at] >= 0x20 && text[at] < 0x7f ? text[at] : '?';
  text_[at] = '\0';
}

Image Image::copy() const {
  Image image(width_, height_);
  std::copy_n(pixels_.get(), stride() * height_, image.pixels_.get());
  return image;
}

Image crop(const Image& image, const Box& box) {
  check_inside(box, image.width(), image.height());
  Image part(box.width, box.height);
  for (std::int64_t y = 0; y < box.height; ++y)
    std::memcpy(part.row(y), image.row(box.top + y) + kColours * box.left, static_cast<std::size_t>(part.stride()));
  return part;
}

ImageDecoder::ImageDecoder(std::span<const std::byte> bytes, const ImageLimits& limits) {
  source_ = open_any(bytes, limits, info_.format);
  info_.orientation = source_->orientation;
  const bool swapped = Turn(info_.orientation).swapped;
  info_.width = swapped ? source_->height : source_->width;
  info_.height = swapped ? source_->width : source_->height;
}

ImageDecoder::~ImageDecoder() = default;
ImageDecoder::ImageDecoder(ImageDecoder&&) noexcept = default;
ImageDecoder& ImageDecoder::operator=(ImageDecoder&&) noexcept = default;

Image ImageDecoder::decode() { return decode({0, 0, info_.width, info_.height}); }

Image ImageDecoder::decode(const Box& crop) {
  check_inside(crop, info_.width, info_.height);
  const auto source = taken(source_);
  const Turn turn(info_.orientation);
  return turn.upright(source->read(turn.stored(crop, source->width, source->height), 1));
}

ImageDecoder::Region ImageDecoder::decode_region(const Box& crop, std::int64_t width, std::int64_t height) {
  const auto fits = [&](std::int64_t n) { return crop.width >= n * width && crop.height >= n * height; };
  const int n = source_ == nullptr || !source_->can_reduce() || !fits(2) ? 1 : fits(4) ? 4 : 2;
  if (n == 1) {
    return {decode(crop), 0, 0, static_cast<double>(crop.width), static_cast<double>(crop.height)};
  }
  check_inside(crop, info_.width, info_.height);
  const auto source = taken(source_);
  const Turn turn(info_.orientation);
  // Of the stored picture at 1/n: all pixels that the crop touches. A pixel there covers n stored ones from its left
  // and top edge on, so positions are counted from the stored picture's corner and turned afterwards.
  const auto full = turn.stored(crop, source->width, source->height);
  const Box box{full.left / n, full.top / n, (full.left + full.width + n - 1) / n - full.left / n,
                (full.top + full.height + n - 1) / n - full.top / n};
  // Where the crop lies in the box, as stored: [from, from + length) of `all` along x and y.
  struct Side {
    double from, length, all;
  };
  const auto side = [n](std::int64_t from, std::int64_t length, std::int64_t first, std::int64_t all) {
    return Side{static_cast<double>(from) / n - static_cast<double>(first), static_cast<double>(length) / n,
                static_cast<double>(all)};
  };
  auto x = side(full.left, full.width, box.left, box.width), y = side(full.top, full.height, box.top, box.height);
  if (turn.from_right) x.from = x.all - x.from - x.length;
  if (turn.from_below) y.from = y.all - y.from - y.length;
  if (turn.swapped) std::swap(x, y);
  return {turn.upright(source->read(box, n)), x.from, y.from, x.from + x.length, y.from + y.length};
}

Image decode(std::span<const std::byte> bytes, const ImageLimits& limits) {
  return ImageDecoder(bytes, limits).decode();
}

Image decode(std::span<const std::byte> bytes, const ImageLimits& limits, const Box& crop) {
  return ImageDecoder(bytes, limits).decode(crop);
}

}  // namespace contextpool::data
