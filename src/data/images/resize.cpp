#include "contextpool/data/images/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "data/images/resample.h"
#include "io/text.h"

namespace contextpool::data {
namespace {

double triangle(double x) {
  x = std::abs(x);
  return x < 1 ? 1 - x : 0;
}

double cubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0;
}

// The pixels of the input that each pixel of the output is a mean of, and their weights in fixed point.
// Pillow keeps the ends in single precision; so do we, for its bits.
resample::Taps taps_of(std::int64_t in, float from, float to, std::int64_t out, Filter filter) {
  const auto weight = filter == Filter::bilinear ? triangle : cubic;
  const double scale = static_cast<double>(to - from) / static_cast<double>(out), stretch = std::max(scale, 1.0);
  const double reach = (filter == Filter::bilinear ? 1 : 2) * stretch, inverse = 1 / stretch;
  resample::Taps taps;
  taps.most = static_cast<std::int64_t>(std::ceil(reach)) * 2 + 1;
  taps.ranges.resize(static_cast<std::size_t>(out));
  taps.weights.assign(static_cast<std::size_t>(out * taps.most), 0);
  std::vector<double> real(static_cast<std::size_t>(taps.most));
  for (std::int64_t i = 0; i < out; ++i) {
    const double centre = static_cast<double>(from) + (static_cast<double>(i) + 0.5) * scale;
    const double low = centre - reach + 0.5, high = centre + reach + 0.5;  // cut towards zero below, as in Pillow
    const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(low));
    const auto last = std::min(in, static_cast<std::int64_t>(high));
    const auto count = last - first;
    double sum = 0;
    for (std::int64_t j = 0; j < count; ++j) {
      real[j] = weight((static_cast<double>(j + first) - centre + 0.5) * inverse);
      sum += real[j];
    }
    auto* const fixed = taps.weights.data() + i * taps.most;
    for (std::int64_t j = 0; j < count; ++j) {
      const double w = (sum != 0 ? real[j] / sum : real[j]) * (1 << resample::kBits);
      fixed[j] = static_cast<std::int32_t>(w < 0 ? w - 0.5 : w + 0.5);
    }
    taps.ranges[static_cast<std::size_t>(i)] = {first, count};
  }
  return taps;
}

void check(const Image& image, std::int64_t width, std::int64_t height, const RealBox& box) {
  if (width < 1 || height < 1)
    throw ImageError(io::text("resize to ", width, " x ", height, ": expected 1 x 1 or more"));
  if (box.left >= 0 && box.top >= 0 && box.right <= static_cast<double>(image.width()) &&
      box.bottom <= static_cast<double>(image.height()) && box.left < box.right && box.top < box.bottom)
    return;
  throw ImageError(io::text("resize: the box from (", box.left, ", ", box.top, ") to (", box.right, ", ", box.bottom,
                            ") does not lie inside the picture of ", image.width(), " x ", image.height()));
}

}  // namespace

Filter filter_named(const std::string& name) {
  if (name == "bilinear") return Filter::bilinear;
  if (name == "bicubic") return Filter::bicubic;
  throw io::Error("resize: the filter " + io::in_quotes(name) + " is not one of bilinear, bicubic");
}

void resize_into(const Image& image, std::int64_t width, std::int64_t height, Filter filter, const RealBox& box,
                 std::uint8_t* out) {
  check(image, width, height, box);
  const bool along_x = width != image.width() || box.left != 0 || box.right != static_cast<double>(width);
  const bool along_y = height != image.height() || box.top != 0 || box.bottom != static_cast<double>(height);
  auto y = along_y
               ? taps_of(image.height(), static_cast<float>(box.top), static_cast<float>(box.bottom), height, filter)
               : resample::Taps{};
  // Only the rows that the second pass reads.
  const auto first = along_y ? y.ranges.front().first : 0;
  const auto rows = (along_y ? y.ranges.back().first + y.ranges.back().count : height) - first;
  for (auto& range : y.ranges) range.first -= first;
  if (!along_x && !along_y) {
    std::memcpy(out, image.row(0), image.bytes().size());
    return;
  }
  if (!along_x) return resample::columns({image.row(first), width, rows, image.stride() * rows}, y, height, out);
  const auto x = taps_of(image.width(), static_cast<float>(box.left), static_cast<float>(box.right), width, filter);
  const resample::Pixels in{image.row(first), image.width(), rows,
                            static_cast<std::int64_t>(image.bytes().size()) - first * image.stride()};
  if (!along_y) return resample::rows(in, x, width, out);
  const auto between =
      std::make_unique_for_overwrite<std::uint8_t[]>(static_cast<std::size_t>(rows * width * kColours));
  resample::rows(in, x, width, between.get());
  resample::columns({between.get(), width, rows, rows * width * kColours}, y, height, out);
}

Image resize(const Image& image, std::int64_t width, std::int64_t height, Filter filter, const RealBox& box) {
  check(image, width, height, box);
  Image out(width, height);
  resize_into(image, width, height, filter, box, out.bytes().data());
  return out;
}

Image resize(const Image& image, std::int64_t width, std::int64_t height, Filter filter) {
  return resize(image, width, height, filter,
                {0, 0, static_cast<double>(image.width()), static_cast<double>(image.height())});
}

}  // namespace contextpool::data
