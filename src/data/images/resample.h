// The two passes of resizing on plain memory: weighted sums of pixels along rows, and along columns.
#pragma once

#include <cstdint>
#include <vector>

namespace contextpool::data::resample {

inline constexpr int kBits = 22;  // of a weight after the point: 8 bits of pixel and 2 of safety remain

struct Range {
  std::int64_t first;
  std::int64_t count;
};

struct Taps {
  std::int64_t most = 0;              // weights kept for each output, zero beyond the count
  std::vector<Range> ranges;          // of input pixels, for each output
  std::vector<std::int32_t> weights;  // [outputs, most]
};

struct Pixels {
  const std::uint8_t* data;
  std::int64_t width;
  std::int64_t height;
  std::int64_t size;  // bytes that may be read
};

// [height, in.width] -> [height, width]
void rows(const Pixels& in, const Taps& taps, std::int64_t width, std::uint8_t* out);
// [in.height, width] -> [height, width]
void columns(const Pixels& in, const Taps& taps, std::int64_t height, std::uint8_t* out);

// What processors without AVX2 run; the same bits.
void plain_rows(const Pixels& in, const Taps& taps, std::int64_t width, std::uint8_t* out);
void plain_columns(const Pixels& in, const Taps& taps, std::int64_t height, std::uint8_t* out);

}  // namespace contextpool::data::resample
