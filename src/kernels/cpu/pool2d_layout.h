// Features of one map as rows of channels, one row a pixel, whatever order the caller keeps them in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/parallel.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

// out[c][r] = in[r][c], by squares that fit the first cache.
template <class S>
void transpose(std::int64_t rows, std::int64_t columns, const S* in, S* out, const Parallel& parallel) {
  constexpr std::int64_t kSquare = 16;
  parallel.run((rows + kSquare - 1) / kSquare, 1 + 4096 / (columns + 1), [&](std::int64_t first, std::int64_t past) {
    for (std::int64_t c = 0; c < columns; c += kSquare) {
      const std::int64_t c_end = std::min(c + kSquare, columns);
      for (std::int64_t r = first * kSquare; r < std::min(past * kSquare, rows); r += kSquare) {
        const std::int64_t r_end = std::min(r + kSquare, rows);
        for (std::int64_t k = c; k < c_end; ++k) {
          for (std::int64_t q = r; q < r_end; ++q) out[k * rows + q] = in[q * columns + k];
        }
      }
    }
  });
}

// A map to read: itself if channels are last, else a transposed copy.
template <class S>
class PixelRows {
 public:
  PixelRows(const S* map, std::int64_t channels, std::int64_t pixels, bool channels_last, const Parallel& parallel)
      : data_(map) {
    if (channels_last || channels == 1) return;
    copy_.reserve(channels * pixels);
    transpose(channels, pixels, map, copy_.data(), parallel);
    data_ = copy_.data();
  }

  const S* data() const { return data_; }

 private:
  Buffer<S> copy_;
  const S* data_;
};

// A map to write: itself if channels are last, else rows that finish() transposes into it.
template <class S>
class PixelRowsOut {
 public:
  PixelRowsOut(S* map, std::int64_t channels, std::int64_t pixels, bool channels_last)
      : map_(map), channels_(channels), pixels_(pixels), direct_(channels_last || channels == 1) {
    if (!direct_) copy_.reserve(channels * pixels);
  }

  S* data() { return direct_ ? map_ : copy_.data(); }
  void finish(const Parallel& parallel) {
    if (!direct_) transpose(pixels_, channels_, copy_.data(), map_, parallel);
  }

 private:
  Buffer<S> copy_;
  S* map_;
  std::int64_t channels_, pixels_;
  bool direct_;
};

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
