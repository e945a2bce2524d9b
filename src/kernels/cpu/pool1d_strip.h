// What happens between the rows of one strip and the targets that have sources in it: kStrip rows and a few vectors of
// channels stay in registers while the targets go by. A panel has one row for each member of the tile.
//
// Weights of 0 are multiplied like others here; what that does to rows that are not finite, the callers look after.
#pragma once

#include <utility>

#include "kernels/cpu/pool1d_tile.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

// Vectors of channels: with kStrip rows they fill half of the registers.
inline constexpr int kChunk = kVectorBytes == 64 ? 4 : 2;

// The targets of one strip: `weight` points to the strip's place in the weights of the tile.
template <class T>
struct Visitors {
  std::uint64_t mask;
  const Slot* slots;
  const T* weight;

  const Slot& slot(std::uint64_t rest) const { return slots[std::countr_zero(rest)]; }
};

// sum_k += sum_r weight_kr row_r for every visitor k.
template <class T, class S, class C>
void pool_strip(const C& chunk, const Rows<const S>& rows, const Visitors<T>& visitors, T* sums) {
  constexpr int vectors = C::kVectors;
  constexpr int width = vectors * kLanes<T>;
  Vec<T> x[kStrip][vectors] = {};
  for (int r = 0; r < kStrip && r < rows.count; ++r) {
    for (int v = 0; v < vectors; ++v) x[r][v] = chunk.load_at(rows.row(r), v);
  }
  for (std::uint64_t rest = visitors.mask; rest != 0; rest &= rest - 1) {
    const Slot& slot = visitors.slot(rest);
    const T* weight = visitors.weight + slot.base;
    T* sum = sums + slot.member * width;
    Vec<T> total[vectors];
    for (int v = 0; v < vectors; ++v) total[v] = load(sum + v * kLanes<T>);
    for (int r = 0; r < kStrip; ++r) {
      for (int v = 0; v < vectors; ++v) total[v] += x[r][v] * weight[r];
    }
    for (int v = 0; v < vectors; ++v) store(sum + v * kLanes<T>, total[v]);
  }
}

// row_r += sum_k weight_kr value_k: the transpose. The rows are in double; only so many values are summed before they
// are added to it.
template <class T, class C>
void spread_strip(const C& chunk, const Rows<double>& rows, const Visitors<T>& visitors, const T* values) {
  constexpr int most = 32;
  constexpr int vectors = C::kVectors;
  constexpr int width = vectors * kLanes<T>;
  for (std::uint64_t rest = visitors.mask; rest != 0;) {
    Vec<T> sum[kStrip][vectors] = {};
    for (int n = 0; n < most && rest != 0; ++n, rest &= rest - 1) {
      const Slot& slot = visitors.slot(rest);
      const T* weight = visitors.weight + slot.base;
      const T* value = values + slot.member * width;
      for (int v = 0; v < vectors; ++v) {
        const auto own = load(value + v * kLanes<T>);
        for (int r = 0; r < kStrip; ++r) sum[r][v] += own * weight[r];
      }
    }
    for (int r = 0; r < kStrip && r < rows.count; ++r) {
      for (int v = 0; v < vectors; ++v) chunk.add_at(rows.row(r), v, sum[r][v]);
    }
  }
}

// kStrip numbers in double, one for each row of a strip.
using StripVec = VecOf<double, kStrip * sizeof(double)>::Type;

template <class T>
StripVec load_strip(const T* p) {
  return __builtin_convertvector(load_raw<typename VecOf<T, kStrip * sizeof(T)>::Type>(p), StripVec);
}

// scalars[r] += sum_k weight_kr (mean_k, 1) for `rows` pairs: spread_strip for the mean of dy . y and for the weights.
template <class T>
void spread_scalars(const Visitors<T>& visitors, const double* mean, std::int64_t rows, double* scalars) {
  StripVec means = {};
  StripVec masses = {};
  for (std::uint64_t rest = visitors.mask; rest != 0; rest &= rest - 1) {
    const Slot& slot = visitors.slot(rest);
    const auto weight = load_strip(visitors.weight + slot.base);
    means += weight == 0 ? StripVec{} : weight * mean[slot.member];  // which may be NaN
    masses += weight;
  }
  for (int r = 0; r < kStrip && r < rows; ++r) {
    scalars[2 * r] += means[r];
    scalars[2 * r + 1] += masses[r];
  }
}

// Lane k of the result is the sum of the lanes of v[k], for as many vectors as there are lanes.
template <int h, class V, int... l>
V fold_lanes(V a, V b, std::integer_sequence<int, l...>) {
  constexpr int lanes = sizeof...(l);
  return __builtin_shufflevector(a, b, ((l & h) == 0 ? l : lanes + l)...) +
         __builtin_shufflevector(a, b, ((l & h) == 0 ? l + h : lanes + l - h)...);
}

template <int h, class V>
V fold_lanes(V a, V b) {
  return fold_lanes<h>(a, b, std::make_integer_sequence<int, sizeof(V) / sizeof(a[0])>());
}

template <int h, class V>
V sum_each(V* v) {
  if constexpr (h == 0) {
    return v[0];
  } else {
    for (int k = 0; k < h; ++k) v[k] = fold_lanes<h>(v[k], v[k + h]);
    return sum_each<h / 2>(v);
  }
}

// What a member gathers: sum_r weight_r (dy . x_r) and the same with weight * falloff, in double by row of the strip.
struct Scores {
  StripVec mean;
  StripVec square;
};

// Visitors whose products with the rows are formed at once: together they fill half of the registers.
inline constexpr int kDots = kVectorBytes == 64 ? 4 : 2;

// products[k][r] = dy_k . x_r over `width` channels.
template <class T>
void dot_strip(const T* x, std::int64_t x_width, const T* const* dy, std::int64_t width, T (*products)[kStrip]) {
  constexpr int lanes = kLanes<T>;
  Vec<T> dot[kDots * kStrip] = {};
  for (std::int64_t d = 0; d < width; d += lanes) {
    Vec<T> row[kStrip];
    for (int r = 0; r < kStrip; ++r) row[r] = load(x + r * x_width + d);
    for (int k = 0; k < kDots; ++k) {
      const auto g = load(dy[k] + d);
      for (int r = 0; r < kStrip; ++r) dot[k * kStrip + r] += g * row[r];
    }
  }
  static_assert(kDots * kStrip % lanes == 0);
  for (int k = 0; k < kDots * kStrip; k += lanes) store(&products[0][0] + k, sum_each<lanes / 2>(dot + k));
}

// Adds what the strip's rows x [kStrip, width] give to the scores of its visitors. Rows of weight 0 do not count,
// whatever they hold.
template <class T>
void score_strip(const T* x, const T* dy, std::int64_t width, const Visitors<T>& visitors, const T* square,
                 Scores* scores) {
  constexpr std::int64_t span = 1024;  // channels: longer sums would lose digits
  const Slot* slots[kDots];
  const T* rows[kDots];
  T products[kDots][kStrip];
  for (std::uint64_t rest = visitors.mask; rest != 0;) {
    int count = 0;
    for (; count < kDots && rest != 0; ++count, rest &= rest - 1) slots[count] = &visitors.slot(rest);
    for (std::int64_t first = 0; first < width; first += span) {
      for (int k = 0; k < kDots; ++k) rows[k] = dy + slots[k < count ? k : 0]->member * width + first;
      dot_strip(x + first, width, rows, std::min(span, width - first), products);
      for (int k = 0; k < count; ++k) {
        const auto weight = load_strip(visitors.weight + slots[k]->base);
        auto product = load_strip(products[k]);
        product = weight == 0.0 ? StripVec{} : product;
        scores[slots[k]->member].mean += weight * product;
        scores[slots[k]->member].square += load_strip(square + slots[k]->base) * product;
      }
    }
  }
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
