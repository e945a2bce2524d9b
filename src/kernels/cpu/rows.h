// Arithmetic on rows of channels: weighted sums of rows, a row spread over rows, small matrices times rows.
// Everything the pooling kernels do with features is one of these.
#pragma once

#include <type_traits>

#include "kernels/cpu/vec.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

// `count` rows of channels, `stride` elements apart.
template <class S>
struct Rows {
  S* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t count = 0;

  S* row(std::int64_t r) const { return data + r * stride; }
};

// A piece of the channels: kVectors vectors from `first`, or, where kPart, one vector of which `lanes` lanes exist.
template <int vectors, bool part>
struct Chunk {
  static constexpr int kVectors = vectors;
  std::int64_t first = 0;
  int lanes = 0;

  template <class S>
  auto load_at(const S* row, int v) const {
    const S* p = row + first + v * kLanes<typename SumOf<S>::Type>;
    if constexpr (part) {
      return load_first(p, lanes);
    } else {
      return load(p);
    }
  }
  // In double, whatever the storage type: the vectors of kVectors * kLanes<double> channels from `first`.
  template <class S>
  Vec<double> load_double_at(const S* row, int v) const {
    const S* p = row + first + v * kLanes<double>;
    return part ? load_double(p, lanes) : load_double(p);
  }
  // row += value, in double.
  template <class V>
  void add_at(double* row, int v, V value) const {
    double* p = row + first + v * static_cast<int>(sizeof(V) / sizeof(value[0]));
    if constexpr (part) {
      add_double_first(p, value, lanes);
    } else {
      add_double(p, value);
    }
  }
  template <class S>
  void store_double_at(S* row, int v, Vec<double> value) const {
    store_double(row + first + v * kLanes<double>, value, part ? lanes : kLanes<double>);
  }
  template <class S, class V>
  void store_at(S* row, int v, V value) const {
    S* p = row + first + v * kLanes<typename SumOf<S>::Type>;
    if constexpr (part) {
      store_first(p, value, lanes);
    } else {
      store(p, value);
    }
  }
};

// Calls body(chunk) over all channels, widest chunks first; T is the type of sums.
template <class T, int widest, class Body>
void for_chunks(std::int64_t channels, const Body& body) {
  std::int64_t d = 0;
  for (; d + widest * kLanes<T> <= channels; d += widest * kLanes<T>) body(Chunk<widest, false>{d, 0});
  if constexpr (widest > 2) {
    for (; d + 2 * kLanes<T> <= channels; d += 2 * kLanes<T>) body(Chunk<2, false>{d, 0});
  }
  for (; d + kLanes<T> <= channels; d += kLanes<T>) body(Chunk<1, false>{d, 0});
  if (d < channels) body(Chunk<1, true>{d, static_cast<int>(channels - d)});
}

inline bool is_zero(double v) { return v == 0; }
inline bool is_zero(float v) { return v == 0; }
inline bool is_zero(bf16 v) { return (v.bits & 0x7fff) == 0; }
inline bool is_zero(f16 v) { return (v.bits & 0x7fff) == 0; }

template <class S>
bool all_zero(const S* values, std::int64_t count) {
  for (std::int64_t d = 0; d < count; ++d) {
    if (!is_zero(values[d])) return false;
  }
  return true;
}

// Rows added to a sum before it is folded into the total: keeps the rounding error of long sums small.
inline constexpr std::int64_t kFold = 512;

// A row as vectors of the type of sums, the last one filled up with 0: out has room for `width` elements.
template <class T, class S>
void copy_row(std::int64_t channels, const S* row, T* out) {
  for_chunks<T, 1>(channels, [&](const auto& chunk) { store(out + chunk.first, Vec<T>(chunk.load_at(row, 0))); });
}
template <class T>
std::int64_t panel_width(std::int64_t channels) {
  return (channels + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}
// `count` rows less the origin (null stands for 0); rows that do not exist are copies of the first.
template <int count, class T, class S>
void copy_rows(std::int64_t channels, const Rows<const S>& rows, const T* origin, T* out) {
  const std::int64_t width = panel_width<T>(channels);
  for_chunks<T, 1>(channels, [&](const auto& chunk) {
    const Vec<T> zero = origin == nullptr ? Vec<T>{} : chunk.load_at(origin, 0);
    for (int r = 0; r < count; ++r) {
      store(out + r * width + chunk.first, Vec<T>(chunk.load_at(rows.row(r < rows.count ? r : 0), 0) - zero));
    }
  });
}

// total += sum_r weight_r row_r. Rows of weight 0 are not read into the sum: their features may be NaN.
template <class T, class S, class C>
void add_rows(const C& chunk, const Rows<const S>& rows, const T* weight, Vec<T>* total) {
  for (std::int64_t begin = 0; begin < rows.count; begin += kFold) {
    const std::int64_t end = begin + kFold < rows.count ? begin + kFold : rows.count;
    Vec<T> sum[C::kVectors] = {};
    for (std::int64_t r = begin; r < end; ++r) {
      if (weight[r] == 0) continue;
      const S* row = rows.row(r);
      for (int v = 0; v < C::kVectors; ++v) sum[v] += chunk.load_at(row, v) * weight[r];
    }
    for (int v = 0; v < C::kVectors; ++v) total[v] += sum[v];
  }
}

// The same, one row after the other straight into the total.
template <class T, class S, class C>
void chain_rows(const C& chunk, const Rows<const S>& rows, const T* weight, Vec<T>* total) {
  for (std::int64_t r = 0; r < rows.count; ++r) {
    if (weight[r] == 0) continue;
    for (int v = 0; v < C::kVectors; ++v) total[v] += chunk.load_at(rows.row(r), v) * weight[r];
  }
}

// row_r += weight_r value: the transpose of add_rows. The rows are in double.
template <class T, class C>
void spread_rows(const C& chunk, const Rows<double>& rows, const T* weight, const Vec<T>* value) {
  for (std::int64_t r = 0; r < rows.count; ++r) {
    if (weight[r] == 0) continue;
    for (int v = 0; v < C::kVectors; ++v) chunk.add_at(rows.row(r), v, value[v] * weight[r]);
  }
}

// The same for several values at once, each row loaded once: row_r += sum_g weight[g][r] value[g]. Values must be
// finite.
template <int group, class T, class C>
void spread_rows_group(const C& chunk, const Rows<double>& rows, const T* const* weight,
                       const Vec<T> (*value)[C::kVectors]) {
  const T* w[group];
  Vec<T> x[group][C::kVectors];
  for (int g = 0; g < group; ++g) {
    w[g] = weight[g];
    for (int v = 0; v < C::kVectors; ++v) x[g][v] = value[g][v];
  }
  // Several rows at once, summed before any is stored: the sums are chains that wait for themselves.
  constexpr int step = 2;
  std::int64_t r = 0;
  for (; r + step <= rows.count; r += step) {
    Vec<T> sum[step][C::kVectors];
    for (int k = 0; k < step; ++k) {
      for (int v = 0; v < C::kVectors; ++v) sum[k][v] = x[0][v] * w[0][r + k];
    }
    for (int g = 1; g < group; ++g) {
      for (int k = 0; k < step; ++k) {
        for (int v = 0; v < C::kVectors; ++v) sum[k][v] += x[g][v] * w[g][r + k];
      }
    }
    for (int k = 0; k < step; ++k) {
      for (int v = 0; v < C::kVectors; ++v) chunk.add_at(rows.row(r + k), v, sum[k][v]);
    }
  }
  for (; r < rows.count; ++r) {
    for (int v = 0; v < C::kVectors; ++v) {
      Vec<T> sum = x[0][v] * w[0][r];
      for (int g = 1; g < group; ++g) sum += x[g][v] * w[g][r];
      chunk.add_at(rows.row(r), v, sum);
    }
  }
}

// out_q = sum_r matrix[q][r] (row_r - origin) for q < outs; null stands for an origin of 0. Rows r with use[r] == 0 are
// not read: they may be NaN or absent.
template <int outs, class T, class S>
void mix_rows(std::int64_t channels, const T* matrix, const T* use, const Rows<const S>& rows, const T* origin,
              const Rows<T>& out) {
  for_chunks<T, 2>(channels, [&](const auto& chunk) {
    using C = std::decay_t<decltype(chunk)>;
    Vec<T> sum[outs][C::kVectors] = {};
    Vec<T> zero[C::kVectors] = {};
    for (int v = 0; v < C::kVectors && origin != nullptr; ++v) zero[v] = chunk.load_at(origin, v);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      if (use[r] == 0) continue;
      for (int v = 0; v < C::kVectors; ++v) {
        const auto x = chunk.load_at(rows.row(r), v) - zero[v];
        for (int q = 0; q < outs; ++q) sum[q][v] += x * matrix[q * rows.count + r];
      }
    }
    for (int q = 0; q < outs; ++q) {
      for (int v = 0; v < C::kVectors; ++v) chunk.store_at(out.row(q), v, sum[q][v]);
    }
  });
}

// row_r += sum_q matrix[q][r] in_q for q < ins: the transpose of mix_rows. Rows with use[r] == 0 are left alone.
template <int ins, class T, class A>
void unmix_rows(std::int64_t channels, const T* matrix, const T* use, const Rows<const A>& in, const Rows<A>& rows) {
  for_chunks<A, 2>(channels, [&](const auto& chunk) {
    using C = std::decay_t<decltype(chunk)>;
    Vec<A> g[ins][C::kVectors];
    for (int q = 0; q < ins; ++q) {
      for (int v = 0; v < C::kVectors; ++v) g[q][v] = chunk.load_at(in.row(q), v);
    }
    for (std::int64_t r = 0; r < rows.count; ++r) {
      if (use[r] == 0) continue;
      for (int v = 0; v < C::kVectors; ++v) {
        auto sum = chunk.load_at(rows.row(r), v);
        for (int q = 0; q < ins; ++q) sum += g[q][v] * static_cast<A>(matrix[q * rows.count + r]);
        chunk.store_at(rows.row(r), v, sum);
      }
    }
  });
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
