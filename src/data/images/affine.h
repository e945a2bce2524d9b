// A picture seen through an affine map: pixel (x, y) of the result is the input at
//   (a (x + 1/2) + b (y + 1/2) + c, d (x + 1/2) + e (y + 1/2) + f),
// interpolated from 2 x 2 or 4 x 4 pixels, and the fill colour outside. Values are cut off, not rounded, as in Pillow.
#pragma once

#include "contextpool/data/images/operations.h"

namespace contextpool::data {

struct Affine {
  double a, b, c, d, e, f;
};

Affine rotation(double degrees, double width, double height);  // anticlockwise about the centre
Image transformed(const Image& image, const Affine& map, const OperationOptions& options);

}  // namespace contextpool::data
