// The three products of dynamic_convolution for a tile of tokens and one vector of channels, in registers:
//
//   a_tk = w_k + sum_r inner_tr U_kr             the coefficients, used where they stand
//   dU_kr += sum_t inner_tr g_tk                 g_tk = dy_t x_(t - left + k), in the nearest cache
//   dinner_t += sum_k sum_c g_tkc U_kc           with the rank along the vector
//
// U comes in panels, one for each vector of channels (dynamic_convolution_panels.h).
#pragma once

#include <type_traits>

#include "kernels/cpu/vec.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH::dynamic {

// Sums that stay in registers: kTokens x kGroup coefficients, with the taps and a factor beside them.
inline constexpr bool kManyRegisters = kVectorBytes == 64;
inline constexpr int kTokens = 6, kGroup = kManyRegisters ? 4 : 2, kSums = kManyRegisters ? 16 : 8;

inline constexpr std::int64_t kTile = 96;  // tokens, of which a vector of channels is worked on at a time
static_assert(kTile % kTokens == 0 && kTile % kSums == 0);

inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

// body(n or `limit`, whichever is less, as a constant)
template <int limit, class Body>
void with_count(std::int64_t n, const Body& body) {
  if constexpr (limit > 1) {
    if (n < limit) return with_count<limit - 1>(n, body);
  }
  body(std::integral_constant<int, limit>{});
}

// A row of a batch: tokens from `begin` on, `stride` elements apart.
template <class S>
struct TokenRow {
  S* data;
  std::int64_t stride, begin;
  S* at(std::int64_t token, std::int64_t channel = 0) const { return data + (token - begin) * stride + channel; }
};

template <class S>
auto load_lanes(const S* p, int lanes) {
  return lanes == kLanes<typename SumOf<S>::Type> ? load(p) : load_first(p, lanes);
}
template <class S, class V>
void store_lanes(S* p, V v, int lanes) {
  lanes == kLanes<typename SumOf<S>::Type> ? store(p, v) : store_first(p, v, lanes);
}

// c[m][v] += sum_p a[p][m] b[p][v] for m < rows and v < vectors of the width of T.
template <int rows, int vectors, std::int64_t a_row, class T>
void add_product(std::int64_t count, const T* a, std::int64_t a_step, const T* b, std::int64_t b_step, T* c,
                 std::int64_t c_row) {
  Vec<T> sum[rows][vectors];
  for (int m = 0; m < rows; ++m) {
    for (int v = 0; v < vectors; ++v) sum[m][v] = Vec<T>{};
  }
  for (std::int64_t p = 0; p < count; ++p, a += a_step, b += b_step) {
    Vec<T> factor[vectors];
    for (int v = 0; v < vectors; ++v) factor[v] = load(b + v * kLanes<T>);
    for (int m = 0; m < rows; ++m) {
      for (int v = 0; v < vectors; ++v) sum[m][v] += factor[v] * a[m * a_row];
    }
  }
  for (int m = 0; m < rows; ++m) {
    for (int v = 0; v < vectors; ++v) {
      T* const p = c + m * c_row + v * kLanes<T>;
      store(p, load(p) + sum[m][v]);
    }
  }
}

// A row on its way from tokens to tokens. Forward, token i of `to` takes from i - left + k of `from`, with coefficients
// made of its own row of `inner`. Back, the transpose, it takes from i + left - k, with the coefficients of that one.
template <class S>
struct Mixing {
  using T = typename SumOf<S>::Type;
  TokenRow<const S> from;
  TokenRow<const T> inner;
  TokenRow<S> to;
  std::int64_t end;  // of all of them
  std::int64_t taps, rank, left;
  bool residual;
};

// a[t][k] for the taps of a group; inner has kTokens rows, or, back, taps - 1 more, of which tap k begins with the one
// taps - 1 - k. A row of the panel is w or U_r, for all taps.
template <int taps, bool back, class T>
__attribute__((always_inline)) inline void coefficients(const T* const* inner, const T* panel, std::int64_t rank,
                                                        std::int64_t row, Vec<T> (&a)[kTokens][taps]) {
  for (int k = 0; k < taps; ++k) {
    const auto w = load(panel + k * kLanes<T>);
    for (auto& of_token : a) of_token[k] = w;
  }
  for (std::int64_t r = 0; r < rank; ++r) {
    panel += row;
    Vec<T> u[taps];
    for (int k = 0; k < taps; ++k) u[k] = load(panel + k * kLanes<T>);
    for (int s = 0; s < kTokens + (back ? taps - 1 : 0); ++s) {
      for (int k = 0; k < taps; ++k) {
        const int t = back ? s - (taps - 1) + k : s;
        if (t >= 0 && t < kTokens) a[t][k] += u[k] * inner[s][r];
      }
    }
  }
}

// Taps [first, first + taps) of the tokens from `begin` to `end`, kTokens at a time; the last tile may do some again.
// All that they read is there, and so is a whole vector of channels. Where there are more taps, sums
// [tiles, kTokens, lanes] keep what is there so far.
template <int taps, bool back, class S>
void mix_inside(const Mixing<S>& m, const typename SumOf<S>::Type* panel, std::int64_t channel, std::int64_t first,
                std::int64_t begin, std::int64_t end, typename SumOf<S>::Type* sums) {
  using T = typename SumOf<S>::Type;
  constexpr int kRows = kTokens + (back ? taps - 1 : 0);
  const auto shift = back ? m.left - first : first - m.left;  // from a token to what tap `first` reads
  const bool starts = first == 0, ends = first + taps == m.taps;
  for (auto next = begin; next < end; next += kTokens, sums += kTokens * kLanes<T>) {
    const auto i = least(next, end - kTokens);
    const T* inner[kRows];
    inner[0] = m.inner.at(back ? i + shift - (taps - 1) : i);
    for (int s = 1; s < kRows; ++s) inner[s] = inner[s - 1] + m.inner.stride;
    Vec<T> a[kTokens][taps], sum[kTokens];
    coefficients<taps, back>(inner, panel + first * kLanes<T>, m.rank, m.taps * kLanes<T>, a);
    for (int t = 0; t < kTokens; ++t) sum[t] = starts ? Vec<T>{} : load(sums + t * kLanes<T>);
    const S* const p = m.from.at(i + shift, channel);
    for (int t = 0; t < kTokens; ++t) {
      for (int k = 0; k < taps; ++k) sum[t] += a[t][k] * load(p + (back ? t - k : t + k) * m.from.stride);
    }
    if (!ends) {
      for (int t = 0; t < kTokens; ++t) store(sums + t * kLanes<T>, sum[t]);
      continue;
    }
    if (m.residual) {
      for (int t = 0; t < kTokens; ++t) sum[t] += load(p + (t - shift) * m.from.stride);
    }
    S* const to = m.to.at(i, channel);
    for (int t = 0; t < kTokens; ++t) store(to + t * m.to.stride, sum[t]);
  }
}

// The same sums at the ends of rows and of channels.
template <bool back, class S>
void mix_edge(const Mixing<S>& m, const typename SumOf<S>::Type* panel, std::int64_t channel, int lanes,
              std::int64_t begin, std::int64_t count) {
  using T = typename SumOf<S>::Type;
  Vec<T> sum[kTokens];
  for (std::int64_t t = 0; t < count; ++t) sum[t] = Vec<T>{};
  for (std::int64_t first = 0; first < m.taps; first += kGroup) {
    with_count<kGroup>(m.taps - first, [&](auto group) {
      constexpr int kTaps = decltype(group)::value;
      constexpr int kRows = kTokens + (back ? kTaps - 1 : 0);
      const auto token = back ? begin + m.left - first : begin - m.left + first;
      const T* inner[kRows];
      for (int s = 0; s < kRows; ++s) {
        const auto row = back ? token - (kTaps - 1) + s : begin + s;
        inner[s] = m.inner.at(most(m.inner.begin, least(row, m.end - 1)));  // those that are not there are not used
      }
      Vec<T> a[kTokens][kTaps], kept[kTokens][kTaps];  // a in registers
      coefficients<kTaps, back>(inner, panel + first * kLanes<T>, m.rank, m.taps * kLanes<T>, a);
      for (int t = 0; t < kTokens; ++t) {
        for (int k = 0; k < kTaps; ++k) kept[t][k] = a[t][k];
      }
      for (std::int64_t t = 0; t < count; ++t) {
        for (std::int64_t k = 0; k < kTaps; ++k) {
          const auto i = token + (back ? t - k : t + k);
          if (i >= m.from.begin && i < m.end) sum[t] += kept[t][k] * load_lanes(m.from.at(i, channel), lanes);
        }
      }
    });
  }
  for (std::int64_t t = 0; t < count; ++t) {
    if (m.residual && begin + t >= m.from.begin) sum[t] += load_lanes(m.from.at(begin + t, channel), lanes);
    store_lanes(m.to.at(begin + t, channel), sum[t], lanes);
  }
}

// Tokens [begin, end), at most kTile, of `lanes` channels from `channel`. Each sum is in the order of the ranks, then
// of the taps, wherever its token is in a tile.
template <bool back, class S>
void mix(const Mixing<S>& m, const typename SumOf<S>::Type* panel, std::int64_t channel, int lanes, std::int64_t begin,
         std::int64_t end) {
  using T = typename SumOf<S>::Type;
  const auto before = back ? m.taps - 1 - m.left : m.left, after = m.taps - 1 - before;
  auto from = most(begin, m.from.begin + before), to = least(end, m.end - after);  // whose taps are all there
  if (lanes < kLanes<T> || to - from < kTokens) from = to = end;
  for (auto i = begin; i < from; i += kTokens) mix_edge<back>(m, panel, channel, lanes, i, least(kTokens, from - i));
  alignas(64) T sums[(kTile + kTokens) * kLanes<T>];
  for (std::int64_t first = 0; first < m.taps && from < to; first += kGroup) {
    with_count<kGroup>(m.taps - first, [&](auto group) {
      mix_inside<decltype(group)::value, back>(m, panel, channel, first, from, to, sums);
    });
  }
  for (auto i = to; i < end; i += kTokens) mix_edge<back>(m, panel, channel, lanes, i, least(kTokens, end - i));
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH::dynamic
