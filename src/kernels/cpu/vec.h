// Vectors of the widest kind the including file is compiled for, written once with the compiler's vector types.
//
// A kernel file is compiled several times with different flags and CONTEXTPOOL_ARCH set to the name of the instruction
// set; everything here lives in a namespace of that name, so that no function compiled for one machine can be linked
// into code that runs on another. For the same reason kernel files use no out-of-line templates of the standard
// library.
#pragma once

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#ifndef CONTEXTPOOL_ARCH
#error "CONTEXTPOOL_ARCH names the namespace of this instruction set; CMakeLists.txt sets it"
#endif

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T, int bytes = kVectorBytes>
struct VecOf {
  using Type __attribute__((vector_size(bytes))) = T;
};
template <class T>
using Vec = typename VecOf<T>::Type;
template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

// Storage types that are not arithmetic types.
struct bf16 {
  std::uint16_t bits;
};
struct f16 {
  std::uint16_t bits;
};

// The type sums are kept in, by storage type.
template <class S>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<double> {
  using Type = double;
};

template <class To, class From>
To bit_cast_vec(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

template <class V, class T>
V load_raw(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

inline Vec<float> load(const float* p) { return load_raw<Vec<float>>(p); }
inline Vec<double> load(const double* p) { return load_raw<Vec<double>>(p); }

inline Vec<float> load(const bf16* p) {
  using Half = VecOf<std::uint16_t, kVectorBytes / 2>::Type;
  const auto bits = __builtin_convertvector(load_raw<Half>(p), Vec<std::uint32_t>);
  return bit_cast_vec<Vec<float>>(bits << 16);
}

inline Vec<float> load(const f16* p) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtph_ps(0xffff, load_raw<__m256i>(p));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(load_raw<__m128i>(p));
#else
  // Exponent and mantissa moved into place and rescaled by 2^112, which also takes care of denormals; all-ones
  // exponents (inf, NaN) are set apart.
  using Half = VecOf<std::uint16_t, kVectorBytes / 2>::Type;
  const auto h = __builtin_convertvector(load_raw<Half>(p), Vec<std::uint32_t>);
  const auto sign = (h & 0x8000) << 16;
  const auto magnitude = (h & 0x7fff) << 13;
  const auto scaled = bit_cast_vec<Vec<std::uint32_t>>(bit_cast_vec<Vec<float>>(magnitude) * 0x1p112F);
  const auto special = magnitude | 0x7f800000;
  return bit_cast_vec<Vec<float>>(sign | ((h & 0x7c00) == 0x7c00 ? special : scaled));
#endif
}

inline void store(float* p, Vec<float> v) { __builtin_memcpy(p, &v, sizeof(v)); }
inline void store(double* p, Vec<double> v) { __builtin_memcpy(p, &v, sizeof(v)); }

// Round to nearest even, NaN stays NaN.
inline void store(bf16* p, Vec<float> v) {
  const auto u = bit_cast_vec<Vec<std::uint32_t>>(v);
  const auto rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const auto bits = (u & 0x7fffffff) > 0x7f800000 ? Vec<std::uint32_t>{} + 0x7fc0 : rounded;
  const auto half = __builtin_convertvector(bits, VecOf<std::uint16_t, kVectorBytes / 2>::Type);
  __builtin_memcpy(p, &half, sizeof(half));
}

inline void store(f16* p, Vec<float> v) {
#if defined(__AVX512F__)
  const auto half = _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
  const auto half = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
#else
  // Normal numbers are rounded in integer arithmetic; small ones by adding 0.5, whose last place is the smallest
  // float16; what exceeds the largest becomes inf.
  const auto u = bit_cast_vec<Vec<std::uint32_t>>(v);
  const auto sign = (u >> 16) & 0x8000;
  const auto a = u & 0x7fffffff;
  const auto normal = (a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13;
  const auto small = bit_cast_vec<Vec<std::uint32_t>>(bit_cast_vec<Vec<float>>(a) + 0.5F) - 0x3f000000;
  const auto finite = a < 0x38800000 ? small : normal;
  const auto large = a > 0x7f800000 ? Vec<std::uint32_t>{} + 0x7e00 : Vec<std::uint32_t>{} + 0x7c00;
  const auto bits = sign | (a >= 0x47800000 ? large : finite);
  const auto half = __builtin_convertvector(bits, VecOf<std::uint16_t, kVectorBytes / 2>::Type);
#endif
  __builtin_memcpy(p, &half, sizeof(half));
}

// The first n lanes only; the others read as 0 and are not written. Where there are instructions for it, in one:
// a copy of n elements to a whole vector and back waits for memory, which made maps of 4 channels slower than of 64.
template <class S>
auto load_first(const S* p, int n) {
  S lanes[kLanes<typename SumOf<S>::Type>] = {};
  __builtin_memcpy(lanes, p, static_cast<std::size_t>(n) * sizeof(S));
  return load(lanes);
}

template <class S, class V>
void store_first(S* p, V v, int n) {
  S lanes[kLanes<typename SumOf<S>::Type>];
  store(lanes, v);
  __builtin_memcpy(p, lanes, static_cast<std::size_t>(n) * sizeof(S));
}

#if defined(__AVX512F__)
inline Vec<float> load_first(const float* p, int n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << n) - 1), p);
}
inline Vec<double> load_first(const double* p, int n) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1U << n) - 1), p);
}
inline void store_first(float* p, Vec<float> v, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1U << n) - 1), v);
}
inline void store_first(double* p, Vec<double> v, int n) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1U << n) - 1), v);
}
#elif defined(__AVX2__)
inline __m256i first_floats(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256i first_doubles(int n) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
inline Vec<float> load_first(const float* p, int n) { return _mm256_maskload_ps(p, first_floats(n)); }
inline Vec<double> load_first(const double* p, int n) { return _mm256_maskload_pd(p, first_doubles(n)); }
inline void store_first(float* p, Vec<float> v, int n) { _mm256_maskstore_ps(p, first_floats(n), v); }
inline void store_first(double* p, Vec<double> v, int n) { _mm256_maskstore_pd(p, first_doubles(n), v); }
#endif

inline float to_float(float v) { return v; }
inline double to_float(double v) { return v; }
template <class S>
float to_float(S v) {
  return load_first(&v, 1)[0];
}

// As many elements as a vector of double has lanes, or the first n of them.
template <class S>
Vec<double> load_double(const S* p, int n = kLanes<double>) {
  constexpr int w = kLanes<double>;
  using T = typename SumOf<S>::Type;
  using Narrow = typename VecOf<T, w * sizeof(T)>::Type;
  Narrow narrow = {};
  if constexpr (!std::is_same_v<S, T>) {
    T lanes[w] = {};
    for (int i = 0; i < n; ++i) lanes[i] = to_float(p[i]);
    narrow = load_raw<Narrow>(lanes);
  } else if (n == w) {
    narrow = load_raw<Narrow>(p);
  } else {
    const auto first = load_first(p, n);
    __builtin_memcpy(&narrow, &first, sizeof(narrow));
  }
  return __builtin_convertvector(narrow, Vec<double>);
}

// p += v, in double.
inline void add_double(double* p, Vec<double> v) { store(p, load(p) + v); }
inline void add_double(double* p, Vec<float> v) {
  constexpr int w = kLanes<double>;
#if defined(__AVX512F__)
  add_double(p, _mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, v, 0)));
  add_double(p + w, _mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, v, 1)));
#elif defined(__AVX2__)
  add_double(p, _mm256_cvtps_pd(_mm256_castps256_ps128(v)));
  add_double(p + w, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
#else
  for (int k = 0; k < 2 * w; ++k) p[k] += static_cast<double>(v[k]);
#endif
}

// The same with the first n lanes only.
inline void add_double_first(double* p, Vec<double> v, int n) { store_first(p, load_first(p, n) + v, n); }
inline void add_double_first(double* p, Vec<float> v, int n) {
#if defined(__AVX512F__) || defined(__AVX2__)
  constexpr int w = kLanes<double>;
  using Half = VecOf<float, kVectorBytes / 2>::Type;
  Half halves[2];
  __builtin_memcpy(halves, &v, sizeof(v));
  add_double_first(p, __builtin_convertvector(halves[0], Vec<double>), n < w ? n : w);
  if (n > w) add_double_first(p + w, __builtin_convertvector(halves[1], Vec<double>), n - w);
#else
  for (int k = 0; k < n; ++k) p[k] += static_cast<double>(v[k]);
#endif
}

template <class S>
void store_double(S* p, Vec<double> v, int n = kLanes<double>) {
  using T = typename SumOf<S>::Type;
  constexpr int w = kLanes<double>;
  const auto narrow = __builtin_convertvector(v, typename VecOf<T, w * sizeof(T)>::Type);
  if (std::is_same_v<S, T> && n == w) {
    __builtin_memcpy(p, &narrow, sizeof(narrow));
  } else {
    Vec<T> padded = {};
    __builtin_memcpy(&padded, &narrow, sizeof(narrow));
    store_first(p, padded, n);
  }
}

template <class V>
auto sum_lanes(V v) {
  auto sum = v[0];
  for (std::size_t i = 1; i < sizeof(V) / sizeof(v[0]); ++i) sum += v[i];
  return sum;
}

template <class V>
auto max_lanes(V v) {
  auto most = v[0];
  for (std::size_t i = 1; i < sizeof(V) / sizeof(v[0]); ++i) most = most > v[i] ? most : v[i];
  return most;
}

// The lanes' numbers: 0, 1, 2, ...
inline Vec<double> iota() {
  Vec<double> v;
  for (int i = 0; i < kLanes<double>; ++i) v[i] = i;
  return v;
}

// Weights, 0 for those that T could hold as denormal numbers only, which are slow.
template <class T>
Vec<double> normal(Vec<double> v) {
  return v < static_cast<double>(std::numeric_limits<T>::min()) ? Vec<double>{} : v;
}

// 2^v; exactly 0 below -1000 (and for -inf), infinite from 1024 on, NaN for NaN. Relative error 5e-9 when T is float
// and 2e-16 when T is double: the Taylor series of 2^f on [-1/2, 1/2].
template <class T>
Vec<double> exp2(Vec<double> v) {
  constexpr double kShift = 0x1.8p52;
  const auto tiny = v <= -1000.0;
  const auto below = v > 1024.0 ? Vec<double>{} + 1024.0 : v;
  const auto x = tiny ? Vec<double>{} - 1000.0 : below;
  const auto shifted = x + kShift;
  const auto f = (x - (shifted - kShift)) * 0.693147180559945309417;
  Vec<double> r;
  if constexpr (sizeof(T) == 4) {
    r = Vec<double>{} + 1.0 / 5040;
  } else {
    r = Vec<double>{} + 1.0 / 6227020800;
    r = r * f + 1.0 / 479001600;
    r = r * f + 1.0 / 39916800;
    r = r * f + 1.0 / 3628800;
    r = r * f + 1.0 / 362880;
    r = r * f + 1.0 / 40320;
    r = r * f + 1.0 / 5040;
  }
  r = r * f + 1.0 / 720;
  r = r * f + 1.0 / 120;
  r = r * f + 1.0 / 24;
  r = r * f + 1.0 / 6;
  r = r * f + 0.5;
  r = r * f + 1.0;
  r = r * f + 1.0;
  const auto power = (bit_cast_vec<Vec<std::int64_t>>(shifted) << 52) + 0x3ff0000000000000;
  r = r * bit_cast_vec<Vec<double>>(power);
  return tiny ? Vec<double>{} : r;
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
