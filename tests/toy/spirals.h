// The dataset: point i of a split lies at angle a in [0, 3/2 pi) on spiral i mod 2, radius a / (3/2 pi), and is a pure
// function of (split, i), so that it needs no file.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "contextpool/data/random.h"

namespace contextpool::toy {

struct Point {
  double x, y;
  std::int64_t label;
};

struct Spirals {
  std::int64_t train = 200, dev = 100;  // points of each split

  enum class Split : std::uint64_t { train, dev };
  std::int64_t size(Split split) const { return split == Split::train ? train : dev; }
  Point item(Split split, std::int64_t i) const {
    constexpr double kTurns = 1.5 * std::numbers::pi;
    const auto bits = data::random_bits({static_cast<std::uint64_t>(split), static_cast<std::uint64_t>(i)});
    const double angle = kTurns * static_cast<double>(bits >> 11) * 0x1p-53, radius = angle / kTurns;
    const auto label = i % 2;
    const double sign = label == 0 ? 1 : -1;
    return {sign * radius * std::cos(angle), sign * radius * std::sin(angle), label};
  }
};

}  // namespace contextpool::toy
