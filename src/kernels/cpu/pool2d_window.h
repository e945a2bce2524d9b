// Which pixels a target of pool2d averages: a disc around it, and their weights
//   2^(bits_j - d^2 inv - scale),   bits = l log2(e),  inv = log2(e) / (2 sigma^2),  d^2 = di^2 + dj^2,
// where scale is the largest exponent in the support, so that the sum of weights can neither overflow nor vanish.
//
// Exactly as defined, a target has the sources with d^2 <= 160 sigma^2. Most of them do not matter, and the disc may
// end earlier, at d^2 = reach, if what lies outside is below 2^-kDrop of the normaliser Z (and, where the gradient of
// sigma is wanted, of the second moment V = sum w d^2). The bounds that settle it cost a few operations for each row
// of the map, not for each pixel. With U_r the largest bits of image row r:
//   - Any one source is a lower bound of Z and of V; the largest of each is found, looking only at rows and columns
//     that could still exceed what was found before.
//   - A source outside the disc weighs at most 2^(U_r - d^2 inv). If U_r - reach inv <= least in every row, all of them
//     together weigh at most 2^least times the sum of 2^(-(d^2 - reach) inv) over the lattice outside the disc. With n
//     lattice points in a disc of radius R between pi (R -+ sqrt(1/2))^2, partial summation bounds that sum by
//     pi (2 sigma^2 + 2 sqrt(2) R + sqrt(2) sigma^2 / R), and R is at most sqrt(160) sigma: see crowd().
//   - For V the same, with log2(d^2) below its tangent at d^2 = 40 sigma^2, which costs a twentieth of the fall-off.
#pragma once

#include "kernels/cpu/pool1d_plan.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

// The largest k with k^2 <= v.
inline std::int64_t floor_sqrt(std::int64_t v) {
  auto k = static_cast<std::int64_t>(std::sqrt(static_cast<double>(v)));
  while (k * k > v) --k;
  return k;
}

// The log weights of one map in bits, and the largest of each row and of all. Rows are padded with -inf by a vector, so
// that a vector may be loaded from any pixel.
class WeightMap {
 public:
  template <class T>
  WeightMap(std::int64_t height, std::int64_t width, const T* log_weight)
      : height_(height), width_(width), pitch_(width + kLanes<double>), bits_(height * pitch_), row_max_(height) {
    for (std::int64_t i = 0; i < height; ++i) {
      double* out = bits_.data() + i * pitch_;
      double most = -kInfinity;
      for (std::int64_t j = 0; j < width; ++j) {
        out[j] = bits_of(log_weight[i * width + j]);
        most = std::max(most, out[j]);
      }
      for (std::int64_t j = width; j < pitch_; ++j) out[j] = -kInfinity;
      row_max_[i] = most;
      max_ = std::max(max_, most);
    }
  }

  std::int64_t height() const { return height_; }
  std::int64_t width() const { return width_; }
  const double* row(std::int64_t i) const { return bits_.data() + i * pitch_; }
  double row_max(std::int64_t i) const { return row_max_[i]; }
  double max() const { return max_; }

 private:
  std::int64_t height_, width_, pitch_;
  Buffer<double> bits_;
  Buffer<double> row_max_;
  double max_ = -kInfinity;
};

// A target: the pixel it sits on and its window.
struct Target {
  Target(std::int64_t i, std::int64_t j, double sigma, const WeightMap& map) : i(i), j(j) {
    const auto h = static_cast<double>(map.height() - 1);
    const auto w = static_cast<double>(map.width() - 1);
    const double all = h * h + w * w;
    const double square = sigma > 0 ? 160 * sigma * sigma : 0;
    support = static_cast<std::int64_t>(square < all ? square : all);
    if (support > 0) {
      sigma2 = sigma * sigma;
      inv = kLog2E / (2 * sigma2);
    }
  }

  std::int64_t i, j;
  std::int64_t support = 0;  // the largest d^2 of a source
  double sigma2 = 0;         // both 0 where the support is the pixel itself
  double inv = 0;
};

// Sources with d^2 <= reach (none if that is negative), and the largest exponent of a weight.
struct Disc {
  std::int64_t reach = -1;
  double scale = -kInfinity;
};

template <class T>
class DiscPlanner {
 public:
  DiscPlanner(const WeightMap& map, bool keep_all) : map_(map), keep_all_(keep_all) {}

  // For the sum of weights and, with moment, the sum of weight * d^2.
  Disc plan(const Target& target, bool moment) const {
    moment = moment && !keep_all_ && target.inv > 0;
    Largest found = {map_.row(target.i)[target.j], moment ? -kInfinity : kInfinity};
    if (target.support > 0) search(target, found);
    if (found.weight == -kInfinity) return {};
    if (keep_all_ || !(target.inv > 0)) return {target.support, found.weight};
    const double drop = Accuracy<T>::kDrop + crowd(target);
    return {reach(target, found.weight - drop, found.moment - drop), found.weight};
  }

  // The same disc, closer where the sum of weights is known: log2 of it, scale included.
  std::int64_t shrink(const Target& target, const Disc& disc, double log2_sum) const {
    if (keep_all_ || !(target.inv > 0)) return disc.reach;
    return std::min(disc.reach, reach(target, log2_sum - Accuracy<T>::kDrop - crowd(target), kInfinity));
  }

 private:
  static constexpr double kTangent = 40;  // of log2(d^2) at kTangent sigma^2:
  static constexpr double kSlope = 1 - 2 / kTangent;
  static double tangent(const Target& t) { return std::log2(kTangent * t.sigma2) - kLog2E; }  // - d^2 inv kSlope

  // log2 of (the weights outside a disc, over the weight at its rim); see above.
  double crowd(const Target& target) const {
    const double radius = std::sqrt(static_cast<double>(target.support));
    const auto pixels = static_cast<double>(map_.height() * map_.width());
    return std::log2(std::min(pixels, 12 * target.sigma2 + 9 * radius + 4));
  }

  // Largest exponents found so far: of a weight, and of weight * d^2 (from below, by up to 1; inf when not wanted).
  struct Largest {
    double weight, moment;
  };

  void search(const Target& target, Largest& found) const {
    const double top = tangent(target);
    // The most that log2(d^2) - d^2 inv can be: at d^2 = 2 sigma^2, unless that is outside.
    const double peak = std::min(top - std::log2(kTangent / 2), std::log2(static_cast<double>(target.support)));
    const std::int64_t rows = floor_sqrt(target.support);
    for (std::int64_t di = 0; di <= rows; ++di) {
      const auto fall = static_cast<double>(di * di) * target.inv;
      const double peak_here = std::min(peak, top - kSlope * fall);
      if (!(map_.max() - fall > found.weight) && !(map_.max() + peak_here > found.moment)) break;
      for (int side = di == 0 ? 1 : 0; side < 2; ++side) {
        const std::int64_t i = side == 0 ? target.i - di : target.i + di;
        if (i < 0 || i >= map_.height()) continue;
        const double most = map_.row_max(i);
        const bool heavier = most - fall > found.weight;
        const bool wider = most + peak_here > found.moment;
        if (!heavier && !wider) continue;
        double columns = static_cast<double>(target.support - di * di);
        if (target.inv > 0) {
          const double by_weight = heavier ? (most - fall - found.weight) / target.inv : 0;
          const double by_moment = wider ? (most + top - kSlope * fall - found.moment) / (kSlope * target.inv) : 0;
          columns = std::min(columns, std::max(by_weight, by_moment));
        }
        search_row(target, i, floor_sqrt(static_cast<std::int64_t>(columns)), found);
      }
    }
  }

  void search_row(const Target& target, std::int64_t i, std::int64_t radius, Largest& found) const {
    constexpr int w = kLanes<double>;
    const std::int64_t begin = std::max<std::int64_t>(0, target.j - radius);
    const std::int64_t end = std::min(map_.width(), target.j + radius + 1);
    const double* bits = map_.row(i);
    const auto di2 = static_cast<double>((target.i - i) * (target.i - i));
    const bool moment = found.moment < kInfinity;
    const auto nothing = Vec<double>{} - kInfinity;
    const auto limit = static_cast<double>(target.support);
    auto weight = nothing;
    auto second = nothing;
    auto dj = static_cast<double>(begin - target.j) + iota();
    for (std::int64_t j = begin; j < end; j += w, dj += w) {
      const auto d2 = dj * dj + di2;
      const auto e = d2 <= limit ? load(bits + j) - d2 * target.inv : nothing;
      weight = e > weight ? e : weight;
      if (!moment) continue;
      const auto m = d2 > 0.0 ? e + floor_log2(d2) : nothing;
      second = m > second ? m : second;
    }
    found.weight = std::max(found.weight, max_lanes(weight));
    if (moment) found.moment = std::max(found.moment, max_lanes(second));
  }

  // The least reach at which no row outside could hold a weight above `least`, or a weight * d^2 above `least_moment`.
  std::int64_t reach(const Target& target, double least, double least_moment) const {
    const bool moment = least_moment < kInfinity && least_moment > -kInfinity;
    const double top = moment ? tangent(target) - least_moment : -kInfinity;
    const double by_weight = 1 / target.inv;
    const double by_moment = 1 / (kSlope * target.inv);
    const auto limit = static_cast<double>(target.support);
    const auto end_of = [&](double most) {
      return std::min(limit, std::max((most - least) * by_weight, (most + top) * by_moment));
    };
    const double farthest = end_of(map_.max());
    const std::int64_t rows = farthest > 0 ? floor_sqrt(static_cast<std::int64_t>(farthest)) : 0;
    double reach = std::min(limit, 1.0);  // the bound of crowd() wants a radius of at least 1
    for (std::int64_t i = std::max<std::int64_t>(0, target.i - rows); i < std::min(map_.height(), target.i + rows + 1);
         ++i) {
      const double end = end_of(map_.row_max(i));
      const auto di2 = static_cast<double>((target.i - i) * (target.i - i));
      if (end >= di2) reach = std::max(reach, end);
    }
    return static_cast<std::int64_t>(reach);
  }

  const WeightMap& map_;
  bool keep_all_;
};

// Pixels of one image row, and where their weights are: at `offset`, with room to whole vectors.
struct PixelRun {
  std::int64_t i;
  std::int64_t j;
  std::int64_t count;
  std::int64_t offset;
};

// The pixels of a disc, row by row, or of several discs side by side.
class Runs {
 public:
  // Discs around (i, j_first) .. (i, j_last), as far as they lie in image rows row_begin..row_end.
  void assign(std::int64_t i, std::int64_t j_first, std::int64_t j_last, std::int64_t reach, const WeightMap& map,
              std::int64_t row_begin, std::int64_t row_end) {
    count_ = 0;
    size_ = 0;
    if (reach < 0) return;
    const std::int64_t rows = floor_sqrt(reach);
    const std::int64_t first = std::max(row_begin, i - rows);
    const std::int64_t past = std::min(row_end, i + rows + 1);
    if (first >= past) return;
    runs_.reserve(past - first);
    for (std::int64_t row = first; row < past; ++row) {
      const std::int64_t radius = floor_sqrt(reach - (i - row) * (i - row));
      const std::int64_t j = std::max<std::int64_t>(0, j_first - radius);
      const std::int64_t count = std::min(map.width(), j_last + radius + 1) - j;
      runs_[count_++] = {row, j, count, size_};
      size_ += (count + kLanes<double> - 1) / kLanes<double> * kLanes<double>;
    }
  }

  const PixelRun* begin() const { return runs_.data(); }
  const PixelRun* end() const { return runs_.data() + count_; }
  std::int64_t size() const { return size_; }

 private:
  Buffer<PixelRun> runs_;
  std::int64_t count_ = 0;
  std::int64_t size_ = 0;
};

// One target's weights over some runs, 0 outside its own disc.
template <class T>
struct DiscWeights {
  Buffer<T> weight;
  Buffer<T> square;  // weight * d^2 inv, when asked for
  double sum = 0;
  double sum_square = 0;

  // weight = 2^(exponent - scale) * factor.
  template <bool squares>
  void assign(const Runs& runs, const Target& target, std::int64_t reach, const WeightMap& map, double scale,
              double factor = 1) {
    constexpr int w = kLanes<double>;
    weight.reserve(runs.size());
    if constexpr (squares) square.reserve(runs.size());
    const auto limit = static_cast<double>(reach);
    const auto nothing = Vec<double>{} - kInfinity;
    Vec<double> total = {};
    Vec<double> total_square = {};
    for (const PixelRun& run : runs) {
      const double* bits = map.row(run.i) + run.j;
      const auto di2 = static_cast<double>((target.i - run.i) * (target.i - run.i));
      auto dj = static_cast<double>(run.j - target.j) + iota();
      for (std::int64_t k = 0; k < run.count; k += w, dj += w) {
        const auto d2 = dj * dj + di2;
        const auto falloff = d2 * target.inv;
        // What a vector holds past the run's end is outside the disc, or past the row's end, where bits are -inf.
        const auto inside = d2 <= limit;
        const auto e = inside ? load(bits + k) - falloff - scale : nothing;
        const auto own = inside ? exp2<T>(e) * factor : Vec<double>{};  // the factor may be NaN
        store_double(weight.data() + run.offset + k, normal<T>(own));
        total += own;
        if constexpr (squares) {
          store_double(square.data() + run.offset + k, normal<T>(own * falloff));
          total_square += own * falloff;
        }
      }
    }
    sum = sum_lanes(total);
    sum_square = sum_lanes(total_square);
  }
};

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
