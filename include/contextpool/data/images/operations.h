// The operations of RandAugment and of colour jitter on a picture, as Pillow's ImageOps, ImageEnhance and
// Image.transform compute them. No torch needed.
//
//   kind                     argument                     what it does
//   autocontrast, equalize   -                            stretches, flattens each colour's histogram
//   invert                   -                            255 - x
//   rotate                   degrees                      anticlockwise about the centre
//   posterize                bits kept, 0 ... 8
//   solarize                 threshold                    inverts values from it on
//   solarize_add             amount                       is added to values below 128
//   colour, contrast,        factor                       1 changes nothing, 0 is grey, flat, black, blurred; above 1
//   brightness, sharpness                                 is more of it
//   shear_x, shear_y         tangent
//   translate_x, translate_y part of the width, height
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "contextpool/data/images/image.h"
#include "contextpool/data/images/resize.h"

namespace contextpool::data {

enum class OperationKind {
  autocontrast,
  equalize,
  invert,
  rotate,
  posterize,
  solarize,
  solarize_add,
  colour,
  contrast,
  brightness,
  sharpness,
  shear_x,
  shear_y,
  translate_x,
  translate_y
};
inline constexpr int kOperationKinds = 15;
const char* name_of(OperationKind kind);
OperationKind operation_named(const std::string& name);

struct Operation {
  OperationKind kind;
  double argument = 0;

  bool operator==(const Operation&) const = default;
};

struct OperationOptions {
  std::array<std::uint8_t, 3> fill = {124, 116, 104};  // where nothing of the picture comes to lie: ImageNet's mean
  Filter filter = Filter::bicubic;
};

void apply(Image& image, const Operation& operation, const OperationOptions& options = {});
void apply(Image& image, const std::vector<Operation>& operations, const OperationOptions& options = {});

void flip(Image& image);  // left and right

}  // namespace contextpool::data
