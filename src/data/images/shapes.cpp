#include "contextpool/data/images/shapes.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "contextpool/data/images/draws.h"

namespace contextpool::data {
namespace {

constexpr std::int64_t kSmallest = 16;
constexpr double kNoise = 12;  // standard deviation, in grey levels

// Whether (x, y), in units of the shape's half-width, belongs to it.
using Inside = bool (*)(double x, double y);
struct Shape {
  const char* name;
  Inside inside;
};
double far(double x, double y) { return std::max(std::abs(x), std::abs(y)); }
constexpr std::array<Shape, 10> kShapes = {{
    {"disc", [](double x, double y) { return x * x + y * y < 1; }},
    {"ring", [](double x, double y) { return x * x + y * y < 1 && x * x + y * y > 0.36; }},
    {"square", [](double x, double y) { return far(x, y) < 0.9; }},
    {"frame", [](double x, double y) { return far(x, y) < 0.9 && far(x, y) > 0.5; }},
    {"diamond", [](double x, double y) { return std::abs(x) + std::abs(y) < 1; }},
    {"triangle", [](double x, double y) { return y < 0.8 && std::abs(x) < (y + 1) / 1.8; }},
    {"wedge", [](double x, double y) { return y > -0.8 && std::abs(x) < (1 - y) / 1.8; }},
    {"plus", [](double x, double y) { return far(x, y) < 1 && std::min(std::abs(x), std::abs(y)) < 0.3; }},
    {"cross", [](double x, double y) { return far(x, y) < 1 && std::abs(std::abs(x) - std::abs(y)) < 0.4; }},
    {"bars", [](double x, double y) { return far(x, y) < 1 && std::abs(std::abs(x) - 0.6) < 0.3; }},
}};

// Two colours that are far enough apart to be told.
void choose_colours(Draws& draws, std::array<double, 3>& front, std::array<double, 3>& back) {
  double apart = 0;
  while (apart < 150) {
    apart = 0;
    for (int c = 0; c < 3; ++c) {
      front[c] = draws.uniform(0, 255);
      back[c] = draws.uniform(0, 255);
      apart += std::abs(front[c] - back[c]);
    }
  }
}

void draw(const Shape& shape, Draws& draws, std::int64_t side, std::uint8_t* out) {
  const auto whole = static_cast<double>(side);
  const double half = draws.uniform(whole / 8, whole * 0.45);
  const double x0 = draws.uniform(half, whole - half), y0 = draws.uniform(half, whole - half);
  std::array<double, 3> front{}, back{};
  choose_colours(draws, front, back);
  for (std::int64_t y = 0; y < side; ++y) {
    for (std::int64_t x = 0; x < side; ++x) {
      const bool inside =
          shape.inside((static_cast<double>(x) + 0.5 - x0) / half, (static_cast<double>(y) + 0.5 - y0) / half);
      for (int c = 0; c < 3; ++c) {
        const double value = (inside ? front[c] : back[c]) + kNoise * draws.normal();
        out[(c * side + y) * side + x] = static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
      }
    }
  }
}

}  // namespace

const std::vector<std::string>& shape_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    all.reserve(kShapes.size());
    for (const auto& shape : kShapes) all.emplace_back(shape.name);
    return all;
  }();
  return names;
}

Shapes make_shapes(std::int64_t seed, std::int64_t first, std::int64_t count, std::int64_t side) {
  TORCH_CHECK_VALUE(first >= 0 && count >= 1 && side >= kSmallest,
                    "make_shapes: expected first >= 0, count >= 1, side >= ", kSmallest, ", but got ", first, ", ",
                    count, ", ", side);
  Shapes shapes{at::empty({count, 3, side, side}, at::kByte), at::empty({count}, at::kLong)};
  auto* const pixels = shapes.pictures.mutable_data_ptr<std::uint8_t>();
  auto* const labels = shapes.labels.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    Draws draws(seed, 0, first + i, Purpose::shape);
    labels[i] = draws.below(static_cast<std::int64_t>(kShapes.size()));
    draw(kShapes[static_cast<std::size_t>(labels[i])], draws, side, pixels + i * 3 * side * side);
  }
  return shapes;
}

}  // namespace contextpool::data
