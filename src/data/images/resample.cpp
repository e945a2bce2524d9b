// Written for AVX2 where the processor has it, and for any other. All sums are of integers, so both have the same bits.
#include "data/images/resample.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define CONTEXTPOOL_AVX2 __attribute__((target("avx2")))
#endif

namespace contextpool::data::resample {
namespace {

constexpr int kColours = 3;
constexpr std::int32_t kHalf = 1 << (kBits - 1);

std::uint8_t to_byte(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kBits, 0, 255)); }

// One pixel of a row: a sum over input pixels side by side.
void plain_pixel(const std::uint8_t* in, const std::int32_t* weights, std::int64_t count, std::uint8_t* out) {
  std::array<std::int32_t, kColours> sum = {kHalf, kHalf, kHalf};
  for (std::int64_t j = 0; j < count; ++j)
    for (int c = 0; c < kColours; ++c) sum[c] += weights[j] * in[kColours * j + c];
  for (int c = 0; c < kColours; ++c) out[c] = to_byte(sum[c]);
}

// One row of the output: a sum over input rows, all of whose bytes have the same weight. In pieces that stay in
// registers.
constexpr std::int64_t kPiece = 32;

template <class Unused = void>
[[gnu::always_inline]] inline void column_row(const std::uint8_t* in, std::int64_t stride, const std::int32_t* weights,
                                              std::int64_t count, std::uint8_t* out) {
  std::int64_t b = 0;
  for (; b + kPiece <= stride; b += kPiece) {
    std::array<std::int32_t, kPiece> sum;
    sum.fill(kHalf);
    for (std::int64_t j = 0; j < count; ++j)
      for (std::int64_t k = 0; k < kPiece; ++k) sum[k] += weights[j] * in[j * stride + b + k];
    for (std::int64_t k = 0; k < kPiece; ++k) out[b + k] = to_byte(sum[k]);
  }
  for (; b < stride; ++b) {
    std::int32_t sum = kHalf;
    for (std::int64_t j = 0; j < count; ++j) sum += weights[j] * in[j * stride + b];
    out[b] = to_byte(sum);
  }
}

#if defined(__x86_64__)
bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

// Two input pixels at a time: eight lanes hold r g b 0 of one and r g b 0 of the next.
CONTEXTPOOL_AVX2 void avx2_pixel(const std::uint8_t* in, const std::int32_t* pairs, std::int64_t count,
                                 std::uint8_t* out) {
  const __m256i spread = _mm256_setr_epi8(0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, -1, -1, -1, -1,  //
                                          3, -1, -1, -1, 4, -1, -1, -1, 5, -1, -1, -1, -1, -1, -1, -1);
  __m256i sum = _mm256_setzero_si256();
  for (std::int64_t j = 0; j < count; j += 2, in += 2 * kColours, pairs += 8) {
    std::int64_t bytes;
    std::memcpy(&bytes, in, sizeof bytes);
    const __m256i two = _mm256_shuffle_epi8(_mm256_set1_epi64x(bytes), spread);
    const __m256i weights = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(two, weights));
  }
  __m128i all = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  all = _mm_srai_epi32(_mm_add_epi32(all, _mm_set1_epi32(kHalf)), kBits);
  all = _mm_packus_epi16(_mm_packs_epi32(all, all), all);
  const auto colours = static_cast<std::uint32_t>(_mm_cvtsi128_si32(all));
  out[0] = static_cast<std::uint8_t>(colours);
  out[1] = static_cast<std::uint8_t>(colours >> 8);
  out[2] = static_cast<std::uint8_t>(colours >> 16);
}

// Eight bytes are read where two pixels have six: near the end of the memory, one by one.
CONTEXTPOOL_AVX2 void avx2_rows(const Pixels& in, const Taps& taps, std::int64_t width, std::uint8_t* out) {
  const std::int64_t most = (taps.most + 1) / 2 * 2;
  std::vector<std::int32_t> repeated_weights(static_cast<std::size_t>(width * most * 4), 0);  // each weight four times
  for (std::int64_t x = 0; x < width; ++x)
    for (std::int64_t j = 0; j < taps.most; ++j)
      std::fill_n(repeated_weights.data() + (x * most + j) * 4, 4, taps.weights[x * taps.most + j]);
  for (std::int64_t y = 0; y < in.height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      const auto range = taps.ranges[x];
      const auto at = kColours * (y * in.width + range.first);
      auto* const to = out + kColours * (y * width + x);
      if (at + kColours * (range.count + 1) + 2 <= in.size) {
        avx2_pixel(in.data + at, repeated_weights.data() + x * most * 4, range.count, to);
      } else {
        plain_pixel(in.data + at, taps.weights.data() + x * taps.most, range.count, to);
      }
    }
  }
}

CONTEXTPOOL_AVX2 void avx2_columns(const Pixels& in, const Taps& taps, std::int64_t height, std::uint8_t* out) {
  const auto stride = kColours * in.width;
  for (std::int64_t y = 0; y < height; ++y)
    column_row(in.data + taps.ranges[y].first * stride, stride, taps.weights.data() + y * taps.most,
               taps.ranges[y].count, out + y * stride);
}
#endif

}  // namespace

void plain_rows(const Pixels& in, const Taps& taps, std::int64_t width, std::uint8_t* out) {
  for (std::int64_t y = 0; y < in.height; ++y)
    for (std::int64_t x = 0; x < width; ++x)
      plain_pixel(in.data + kColours * (y * in.width + taps.ranges[x].first), taps.weights.data() + x * taps.most,
                  taps.ranges[x].count, out + kColours * (y * width + x));
}

void plain_columns(const Pixels& in, const Taps& taps, std::int64_t height, std::uint8_t* out) {
  const auto stride = kColours * in.width;
  for (std::int64_t y = 0; y < height; ++y)
    column_row(in.data + taps.ranges[y].first * stride, stride, taps.weights.data() + y * taps.most,
               taps.ranges[y].count, out + y * stride);
}

void rows(const Pixels& in, const Taps& taps, std::int64_t width, std::uint8_t* out) {
#if defined(__x86_64__)
  if (has_avx2()) return avx2_rows(in, taps, width, out);
#endif
  plain_rows(in, taps, width, out);
}

void columns(const Pixels& in, const Taps& taps, std::int64_t height, std::uint8_t* out) {
#if defined(__x86_64__)
  if (has_avx2()) return avx2_columns(in, taps, height, out);
#endif
  plain_columns(in, taps, height, out);
}

}  // namespace contextpool::data::resample
