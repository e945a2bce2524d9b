#include "data/images/affine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

namespace contextpool::data {
namespace {

// Red, green, blue and nothing, side by side in a register. Pixels are kept in single precision, which holds them
// exactly, and summed in double.
using Pixel = float __attribute__((vector_size(16)));
using Colours = double __attribute__((vector_size(32)));

// 2 taps: (1 - t, t). 4 taps: the cubic through the middle two with slopes from their neighbours (a = -1).
template <int N>
[[gnu::always_inline]] inline std::array<double, N> weights(double t) {
  if constexpr (N == 2) {
    return {1 - t, t};
  } else {
    return {t * (-1 + t * (2 - t)), 1 + t * t * (-2 + t), t * (1 + t * (1 - t)), t * t * (-1 + t)};
  }
}

// The taps that count around x > -1, moved to the edge where they lie outside: all, or the one pixel that is hit
// exactly (along one axis, in shears and shifts).
template <int N>
struct Taps {
  [[gnu::always_inline]] Taps(double x, std::int64_t size) {
    const auto floor = static_cast<std::int64_t>(x + 1) - 1;
    const double t = x - static_cast<double>(floor);
    const bool exact = t == 0;
    count = exact ? 1 : N;
    weight = exact ? std::array<double, N>{1} : weights<N>(t);
    const auto first = exact ? floor : floor - (N / 2 - 1);
    for (int i = 0; i < count; ++i) at[i] = std::clamp<std::int64_t>(first + i, 0, size - 1);
  }

  int count;
  std::array<double, N> weight;
  std::array<std::int64_t, N> at;
};

std::vector<Pixel> spread(const Image& image) {
  std::vector<Pixel> pixels(static_cast<std::size_t>(image.width() * image.height()));
  const auto* p = image.bytes().data();
  for (auto& pixel : pixels) {
    pixel = Pixel{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]), 0};
    p += kColours;
  }
  return pixels;
}

// A taps along x, D along y, fixed so that the loops are unrolled.
template <int A, int D, int N>
[[gnu::always_inline]] inline void sum_up(const Pixel* pixels, std::int64_t width, const Taps<N>& across,
                                          const Taps<N>& down, std::uint8_t* out) {
  Colours sum{};
  for (int j = 0; j < D; ++j) {
    const auto* row = pixels + down.at[j] * width;
    Colours line{};
    for (int i = 0; i < A; ++i) line += across.weight[i] * __builtin_convertvector(row[across.at[i]], Colours);
    sum += down.weight[j] * line;
  }
  // Whole values may come out a few units of the last place low, where Pillow's order of sums has them exact.
  constexpr double kSlack = 1e-9;
  for (int c = 0; c < kColours; ++c)
    out[c] = static_cast<std::uint8_t>(static_cast<int>(std::max(0.0, std::min(sum[c] + kSlack, 255.0))));
}

template <int N>
[[gnu::always_inline]] inline void sample(const Pixel* pixels, std::int64_t width, const Taps<N>& across,
                                          const Taps<N>& down, std::uint8_t* out) {
  if (across.count == N) {
    if (down.count == N) return sum_up<N, N>(pixels, width, across, down, out);
    return sum_up<N, 1>(pixels, width, across, down, out);
  }
  if (down.count == N) return sum_up<1, N>(pixels, width, across, down, out);
  sum_up<1, 1>(pixels, width, across, down, out);
}

template <int N>
[[gnu::always_inline]] inline void fill_in(const Pixel* pixels, const Affine& map, const OperationOptions& options,
                                           Image& out) {
  const auto width = static_cast<double>(out.width()), height = static_cast<double>(out.height());
  for (std::int64_t y = 0; y < out.height(); ++y) {
    auto* to = out.row(y);
    const double fy = static_cast<double>(y) + 0.5;
    for (std::int64_t x = 0; x < out.width(); ++x, to += kColours) {
      const double fx = static_cast<double>(x) + 0.5;
      const double sx = map.a * fx + map.b * fy + map.c, sy = map.d * fx + map.e * fy + map.f;
      if (sx >= 0 && sy >= 0 && sx < width && sy < height) {
        sample(pixels, out.width(), Taps<N>(sx - 0.5, out.width()), Taps<N>(sy - 0.5, out.height()), to);
      } else {
        std::memcpy(to, options.fill.data(), kColours);
      }
    }
  }
}

template <int N>
void fill_in_plain(const Pixel* pixels, const Affine& map, const OperationOptions& options, Image& out) {
  fill_in<N>(pixels, map, options, out);
}

#if defined(__x86_64__)
// Twice as fast. Without fused multiplication, so the bits are the same.
template <int N>
__attribute__((target("avx2"))) void fill_in_avx2(const Pixel* pixels, const Affine& map,
                                                  const OperationOptions& options, Image& out) {
  fill_in<N>(pixels, map, options, out);
}
#endif

template <int N>
Image seen_through(const Image& image, const Affine& map, const OperationOptions& options) {
  Image out(image.width(), image.height());
  const auto pixels = spread(image);
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) {
    fill_in_avx2<N>(pixels.data(), map, options, out);
    return out;
  }
#endif
  fill_in_plain<N>(pixels.data(), map, options, out);
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
