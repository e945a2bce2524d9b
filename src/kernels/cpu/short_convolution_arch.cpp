// short_convolution for one instruction set (CONTEXTPOOL_ARCH).
//
// Tokens are taken kTile at a time and channels a vector at a time: a tap is loaded once for the tile, and what the
// taps read again is in the nearest cache, so that memory is passed over once. Each y is summed in the order of its
// taps, wherever the tile begins. dx is the same convolution of dy with the taps reversed; the gradients of the taps
// are summed in chunks of kChunk tokens, and these in order, so that no bit depends on the threads.
#include "kernels/cpu/short_convolution_arch.h"

#include <type_traits>

#include "kernels/cpu/batch.h"
#include "kernels/cpu/buffer.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {
namespace {

constexpr std::int64_t kTile = 8, kChunk = 256;

inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

// A whole vector, or its first n lanes.
template <bool kWhole, class S>
auto get(const S* p, int n) {
  if constexpr (kWhole) {
    return load(p);
  } else {
    return load_first(p, n);
  }
}
template <bool kWhole, class S, class V>
void put(S* p, V v, int n) {
  if constexpr (kWhole) {
    store(p, v);
  } else {
    store_first(p, v, n);
  }
}

// body(channel, lanes, whether that is a whole vector)
template <class T, class Body>
void for_channels(std::int64_t channels, const Body& body) {
  std::int64_t c = 0;
  for (; c + kLanes<T> <= channels; c += kLanes<T>) body(c, kLanes<T>, std::true_type{});
  if (c < channels) body(c, static_cast<int>(channels - c), std::false_type{});
}

// One row of a batch: tokens beside each other, `stride` elements apart.
template <class S>
struct TokenRow {
  const S* data;
  std::int64_t stride;
  const S* at(std::int64_t token, std::int64_t channel) const { return data + token * stride + channel; }
};

template <class S>
struct Taps {
  using T = typename SumOf<S>::Type;
  const T* weight;  // [taps, channels]
  const T* bias;    // or none
  std::int64_t taps, left;
  bool residual;
};

// Whether all that the taps of tokens [begin, end) read is in the row, for a whole tile: then the loops over it are of
// known length, and the sums stay in registers.
template <class S>
bool is_inside(const Taps<S>& taps, std::int64_t tokens, std::int64_t begin, std::int64_t end) {
  return end - begin == kTile && begin >= taps.left && end - 1 - taps.left + taps.taps <= tokens;
}

// Tokens [begin, end) of y, at most kTile.
template <class S>
void convolve_tile(const TokenRow<S>& x, std::int64_t tokens, std::int64_t channels, const Taps<S>& taps,
                   std::int64_t begin, std::int64_t end, S* y) {
  using T = typename SumOf<S>::Type;
  const bool inside = is_inside(taps, tokens, begin, end);
  for_channels<T>(channels, [&](std::int64_t c, int n, auto whole) {
    constexpr bool kWhole = decltype(whole)::value;
    const auto start = taps.bias != nullptr ? get<kWhole>(taps.bias + c, n) : Vec<T>{};
    if (!inside) {
      for (auto i = begin; i < end; ++i) {
        auto sum = start;
        const auto from = i - taps.left;
        for (auto k = most(0, -from); k < least(taps.taps, tokens - from); ++k) {
          sum += get<kWhole>(taps.weight + k * channels + c, n) * get<kWhole>(x.at(from + k, c), n);
        }
        if (taps.residual) sum += get<kWhole>(x.at(i, c), n);
        put<kWhole>(y + i * channels + c, sum, n);
      }
      return;
    }
    Vec<T> sum[kTile];
    for (auto& of_token : sum) of_token = start;
    for (std::int64_t k = 0; k < taps.taps; ++k) {
      const auto w = get<kWhole>(taps.weight + k * channels + c, n);
      const auto* p = x.at(begin - taps.left + k, c);
      for (std::int64_t t = 0; t < kTile; ++t) sum[t] += w * get<kWhole>(p + t * x.stride, n);
    }
    if (taps.residual) {
      for (std::int64_t t = 0; t < kTile; ++t) sum[t] += get<kWhole>(x.at(begin + t, c), n);
    }
    for (std::int64_t t = 0; t < kTile; ++t) put<kWhole>(y + (begin + t) * channels + c, sum[t], n);
  });
}

// Adds what tokens [begin, end) of dy give to the gradients of the taps and, after them, of the bias.
template <class S, class T>
void gradient_tile(const TokenRow<S>& x, const TokenRow<S>& dy, std::int64_t tokens, std::int64_t channels,
                   const Taps<S>& taps, std::int64_t begin, std::int64_t end, T* sums) {
  const auto first = begin - taps.left;
  const bool inside = is_inside(taps, tokens, begin, end);
  for_channels<T>(channels, [&](std::int64_t c, int n, auto whole) {
    constexpr bool kWhole = decltype(whole)::value;
    T* const of_bias = sums + taps.taps * channels + c;
    auto total = get<kWhole>(of_bias, n);
    if (!inside) {
      for (auto i = begin; i < end; ++i) total += get<kWhole>(dy.at(i, c), n);
      put<kWhole>(of_bias, total, n);
      for (std::int64_t k = 0; k < taps.taps; ++k) {
        auto sum = get<kWhole>(sums + k * channels + c, n);
        for (auto i = most(begin, taps.left - k); i < least(end, tokens + taps.left - k); ++i) {
          sum += get<kWhole>(dy.at(i, c), n) * get<kWhole>(x.at(i - taps.left + k, c), n);
        }
        put<kWhole>(sums + k * channels + c, sum, n);
      }
      return;
    }
    Vec<T> d[kTile];
    for (std::int64_t t = 0; t < kTile; ++t) total += d[t] = get<kWhole>(dy.at(begin + t, c), n);
    put<kWhole>(of_bias, total, n);
    for (std::int64_t k = 0; k < taps.taps; ++k) {
      const auto* from = x.at(first + k, c);
      Vec<T> even = get<kWhole>(sums + k * channels + c, n), odd{};
      for (std::int64_t t = 0; t < kTile; t += 2) {
        even += d[t] * get<kWhole>(from + t * x.stride, n);
        odd += d[t + 1] * get<kWhole>(from + (t + 1) * x.stride, n);
      }
      put<kWhole>(sums + k * channels + c, even + odd, n);
    }
  });
}

template <class S>
TokenRow<S> row_of(const ShortConvolution& in, std::int64_t b) {
  return {static_cast<const S*>(in.x) + b * in.x_batch_stride, in.x_token_stride};
}

// body(row b, its chunk's tokens [begin, end), the chunk's number of all)
template <class Body>
void for_chunks(const ShortConvolution& in, const Parallel& parallel, const Body& body) {
  const auto chunks = (in.tokens + kChunk - 1) / kChunk;
  constexpr std::int64_t kElements = 32768;  // what is worth a thread
  parallel.run(in.batch * chunks, most(1, kElements / (kChunk * in.channels)), [&](std::int64_t from, std::int64_t to) {
    for (auto i = from; i < to; ++i) {
      const auto begin = i % chunks * kChunk;
      body(i / chunks, begin, least(begin + kChunk, in.tokens), i);
    }
  });
}

// The sums of each column over `rows`, in order, in double.
template <class T>
void add_up(const T* values, std::int64_t rows, std::int64_t columns, T* sums, const Parallel& parallel) {
  parallel.run(columns, 4096, [&](std::int64_t from, std::int64_t to) {
    constexpr std::int64_t kBlock = 64;
    for (auto block = from; block < to; block += kBlock) {
      const auto count = least(kBlock, to - block);
      double sum[kBlock] = {};
      for (std::int64_t r = 0; r < rows; ++r) {
        const T* row = values + r * columns + block;
        for (std::int64_t j = 0; j < count; ++j) sum[j] += static_cast<double>(row[j]);
      }
      for (std::int64_t j = 0; j < count; ++j) sums[block + j] = static_cast<T>(sum[j]);
    }
  });
}

template <class S>
void forward(const ShortConvolution& in, S* y, const Parallel& parallel) {
  using T = typename SumOf<S>::Type;
  const Taps<S> taps{static_cast<const T*>(in.weight), static_cast<const T*>(in.bias), in.taps, in.left, in.residual};
  for_chunks(in, parallel, [&](std::int64_t b, std::int64_t begin, std::int64_t end, std::int64_t) {
    const auto x = row_of<S>(in, b);
    for (auto i = begin; i < end; i += kTile) {
      convolve_tile(x, in.tokens, in.channels, taps, i, least(i + kTile, end), y + b * in.tokens * in.channels);
    }
  });
}

template <class S, class T>
void backward(const ShortConvolution& in, const S* dy, S* dx, T* dweight, T* dbias, const Parallel& parallel) {
  const auto size = in.taps * in.channels, all = size + in.channels;
  Buffer<T> reversed(size);
  for (std::int64_t k = 0; k < in.taps; ++k) {
    __builtin_memcpy(reversed.data() + k * in.channels,
                     static_cast<const T*>(in.weight) + (in.taps - 1 - k) * in.channels,
                     static_cast<std::size_t>(in.channels) * sizeof(T));
  }
  const Taps<S> taps{static_cast<const T*>(in.weight), nullptr, in.taps, in.left, false};
  const Taps<S> back{reversed.data(), nullptr, in.taps, in.taps - 1 - in.left, in.residual};
  const auto chunks = in.batch * ((in.tokens + kChunk - 1) / kChunk);
  Buffer<T> partial(chunks * all);
  for_chunks(in, parallel, [&](std::int64_t b, std::int64_t begin, std::int64_t end, std::int64_t chunk) {
    T* const sums = partial.data() + chunk * all;
    for (std::int64_t j = 0; j < all; ++j) sums[j] = 0;
    const auto x = row_of<S>(in, b);
    const TokenRow<S> gradient{dy + b * in.tokens * in.channels, in.channels};
    for (auto i = begin; i < end; i += kTile) {
      const auto next = least(i + kTile, end);
      convolve_tile(gradient, in.tokens, in.channels, back, i, next, dx + b * in.tokens * in.channels);
      gradient_tile(x, gradient, in.tokens, in.channels, taps, i, next, sums);
    }
  });
  Buffer<T> total(all);
  add_up(partial.data(), chunks, all, total.data(), parallel);
  __builtin_memcpy(dweight, total.data(), static_cast<std::size_t>(size) * sizeof(T));
  __builtin_memcpy(dbias, total.data() + size, static_cast<std::size_t>(in.channels) * sizeof(T));
}

}  // namespace

void short_convolution(const ShortConvolution& in, void* y, const Parallel& parallel) {
  with_type(in.type, [&](auto zero) { forward(in, static_cast<decltype(zero)*>(y), parallel); });
}

void short_convolution_backward(const ShortConvolution& in, const void* dy, void* dx, void* dweight, void* dbias,
                                const Parallel& parallel) {
  with_type(in.type, [&](auto zero) {
    using S = decltype(zero);
    using T = typename SumOf<S>::Type;
    backward(in, static_cast<const S*>(dy), static_cast<S*>(dx), static_cast<T*>(dweight), static_cast<T*>(dbias),
             parallel);
  });
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
