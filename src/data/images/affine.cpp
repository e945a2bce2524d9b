#include "data/images/affine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

namespace contextpool::data {
namespace {

using Colours = std::array<double, 3>;

// 2 taps: (1 - t, t). 4 taps: the cubic through the middle two with slopes from their neighbours (a = -1).
template <int N>
std::array<double, N> weights(double t) {
  if constexpr (N == 2) {
    return {1 - t, t};
  } else {
    return {t * (-1 + t * (2 - t)), 1 + t * t * (-2 + t), t * (1 + t * (1 - t)), t * t * (-1 + t)};
  }
}

template <int N>
void sample(const Image& image, double x, double y, std::uint8_t* out) {
  x -= 0.5;
  y -= 0.5;
  const auto left = static_cast<std::int64_t>(std::floor(x)), top = static_cast<std::int64_t>(std::floor(y));
  const auto across = weights<N>(x - static_cast<double>(left)), down = weights<N>(y - static_cast<double>(top));
  std::array<std::int64_t, N> at;
  for (int i = 0; i < N; ++i) at[i] = kColours * std::clamp<std::int64_t>(left + i - (N / 2 - 1), 0, image.width() - 1);
  Colours sum{};
  for (int j = 0; j < N; ++j) {
    const auto* row = image.row(std::clamp<std::int64_t>(top + j - (N / 2 - 1), 0, image.height() - 1));
    Colours line{};
    for (int i = 0; i < N; ++i)
      for (int c = 0; c < kColours; ++c) line[c] += across[i] * row[at[i] + c];
    for (int c = 0; c < kColours; ++c) sum[c] += down[j] * line[c];
  }
  // Whole values may come out a few units of the last place low, where Pillow's order of sums has them exact.
  constexpr double kSlack = 1e-9;
  for (int c = 0; c < kColours; ++c) out[c] = static_cast<std::uint8_t>(std::clamp(sum[c] + kSlack, 0.0, 255.0));
}

template <int N>
Image seen_through(const Image& image, const Affine& map, const OperationOptions& options) {
  Image out(image.width(), image.height());
  const auto width = static_cast<double>(image.width()), height = static_cast<double>(image.height());
  for (std::int64_t y = 0; y < image.height(); ++y) {
    auto* to = out.row(y);
    const double fy = static_cast<double>(y) + 0.5;
    for (std::int64_t x = 0; x < image.width(); ++x, to += kColours) {
      const double fx = static_cast<double>(x) + 0.5;
      const double sx = map.a * fx + map.b * fy + map.c, sy = map.d * fx + map.e * fy + map.f;
      if (sx >= 0 && sy >= 0 && sx < width && sy < height) {
        sample<N>(image, sx, sy, to);
      } else {
        std::memcpy(to, options.fill.data(), options.fill.size());
      }
    }
  }
  return out;
}

}  // namespace

Affine rotation(double degrees, double width, double height) {
  const double angle = -degrees * std::numbers::pi / 180, cosine = std::cos(angle), sine = std::sin(angle);
  const double x = width / 2, y = height / 2;
  return {cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y};
}

Image transformed(const Image& image, const Affine& map, const OperationOptions& options) {
  return options.filter == Filter::bilinear ? seen_through<2>(image, map, options)
                                            : seen_through<4>(image, map, options);
}

}  // namespace contextpool::data
