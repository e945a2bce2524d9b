// Small pictures that need no download: one shape of one of ten classes, of any size, place and colours, on noise. A
// pure function of (seed, index). For tests, and for a first run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace contextpool::data {

const std::vector<std::string>& shape_names();  // ten

struct Shapes {
  at::Tensor pictures;  // uint8 [count, 3, side, side]
  at::Tensor labels;    // int64 [count]
};
// Pictures first ... first + count - 1 of the endless sequence of this seed. side >= 16.
Shapes make_shapes(std::int64_t seed, std::int64_t first, std::int64_t count, std::int64_t side = 32);

}  // namespace contextpool::data
