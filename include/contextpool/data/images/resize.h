// Pictures of another size, bit by bit those of Pillow's resize(size, filter, box): a weighted mean with the filter
// stretched by the scale when the picture shrinks (antialiasing). Along x, then along y,
//
//   out[i] = sum_j w((j + 1/2 - c_i) / s) in[j] / sum_j w((j + 1/2 - c_i) / s),   c_i = from + (i + 1/2) scale,
//
// s = max(scale, 1), w a triangle of half-width 1 (bilinear) or Keys' cubic with a = -1/2, half-width 2 (bicubic), in
// fixed point of 22 bits, rounded to 8 after each direction. No torch needed.
#pragma once

#include <string>

#include "contextpool/data/images/image.h"

namespace contextpool::data {

enum class Filter { bilinear, bicubic };
Filter filter_named(const std::string& name);

// A part of a picture with fractions of pixels: [left, right) x [top, bottom).
struct RealBox {
  double left, top, right, bottom;
};

// The part `box` of `image` as width x height pixels. Like Pillow's, the filter sees pixels beside the box: to keep
// them out, crop first.
Image resize(const Image& image, std::int64_t width, std::int64_t height, Filter filter, const RealBox& box);
Image resize(const Image& image, std::int64_t width, std::int64_t height, Filter filter);

// The same into memory of width * height pixels.
void resize_into(const Image& image, std::int64_t width, std::int64_t height, Filter filter, const RealBox& box,
                 std::uint8_t* out);

}  // namespace contextpool::data
