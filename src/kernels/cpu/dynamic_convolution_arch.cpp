// dynamic_convolution for one instruction set (CONTEXTPOOL_ARCH).
//
// Tokens are taken kTile at a time and channels a vector at a time. The coefficients of a few tokens at a few taps are
// made in registers and used there (dynamic_convolution_tile.h), in the backward again: they are never in memory. Of a
// token, channel and tap that is `rank` multiply-adds in the forward and three times that in the backward.
//
// The gradients of U and w are summed by tiles and by chunks of tokens that do not depend on the threads, and the
// chunks in order, in double.
#include "kernels/cpu/dynamic_convolution_arch.h"

#include "kernels/cpu/batch.h"
#include "kernels/cpu/buffer.h"
#include "kernels/cpu/dynamic_convolution_panels.h"
#include "kernels/cpu/dynamic_convolution_tile.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {
namespace {

using namespace dynamic;

// Of the backward, each with its own sums of the gradients of U and w.
constexpr std::int64_t kLeastChunk = 5 * kTile, kMostChunks = 64;

// body(row b, tokens [begin, end) of it, at most kTile, the number of their chunk, scratch of this size), for the last
// `count` tokens of each row in chunks of `chunk` tokens, whichever rows they are in.
template <class T, class Body>
void for_tiles(const DynamicConvolution& in, std::int64_t count, std::int64_t chunk, std::int64_t scratch_size,
               const Parallel& parallel, const Body& body) {
  const auto all = in.batch * count;
  constexpr std::int64_t kElements = 8192;  // of x, what is worth a thread
  parallel.run(
      ceil_div(all, chunk), most(1, kElements / (chunk * in.channels)), [&](std::int64_t from, std::int64_t to) {
        Buffer<T> scratch(scratch_size);
        for (std::int64_t j = 0; j < scratch_size; ++j) scratch[j] = 0;
        for (auto c = from; c < to; ++c) {
          const auto end = least(all, (c + 1) * chunk);
          for (auto i = c * chunk; i < end;) {
            const auto b = i / count, begin = i % count, next = least(least(begin + kTile, count), begin + end - i);
            body(b, in.tokens - count + begin, in.tokens - count + next, c, scratch.data());
            i += next - begin;
          }
        }
      });
}

template <class S>
TokenRow<const S> x_of(const DynamicConvolution& in, std::int64_t b) {
  return {static_cast<const S*>(in.x) + b * in.x_batch_stride, in.x_token_stride, 0};
}

// The targets of a row of something contiguous.
template <class S>
TokenRow<S> targets_of(const DynamicConvolution& in, S* data, std::int64_t b, std::int64_t features) {
  return {data + b * in.targets * features, features, in.tokens - in.targets};
}

template <class S>
void forward(const DynamicConvolution& in, S* y, const Parallel& parallel) {
  using T = typename SumOf<S>::Type;
  const Panels<T> panels(in);
  Buffer<T> packed(panels.count * panels.size);
  pack(in, panels, packed.data());
  const auto tile = [&](std::int64_t b, std::int64_t begin, std::int64_t end, std::int64_t, T*) {
    const Mixing<S> m{x_of<S>(in, b),
                      targets_of(in, static_cast<const T*>(in.inner), b, in.rank),
                      targets_of(in, y, b, in.channels),
                      in.tokens,
                      in.taps,
                      in.rank,
                      in.left,
                      in.residual};
    for (std::int64_t panel = 0; panel < panels.count; ++panel) {
      mix<false>(m, packed.data() + panel * panels.size, panel * kLanes<T>, lanes_of<T>(in, panel), begin, end);
    }
  };
  for_tiles<T>(in, in.targets, kTile, 0, parallel, tile);
}

// The gradients of a tile that are sums over tokens or over channels.
template <class S>
struct GradientTile {
  using T = typename SumOf<S>::Type;
  const DynamicConvolution& in;
  const Panels<T>& panels;
  std::int64_t width;  // of a row of dinner: the rank, filled up to vectors
  TokenRow<const S> x, dy;
  const T* inner;           // of the tile's first target
  std::int64_t begin, end;  // targets
  T* products;              // [kTile, kGroup, lanes]
  T* dinner;                // [kTile, width]

  // g of the taps [first, first + taps), and what it adds to dw.
  template <int taps>
  void multiply(std::int64_t first, std::int64_t channel, int lanes, T* dweight) const {
    Vec<T> sum[taps];
    for (auto& s : sum) s = Vec<T>{};
    for (auto i = begin; i < end; ++i) {
      const auto d = load_lanes(dy.at(i, channel), lanes);
      T* const to = products + (i - begin) * kGroup * kLanes<T>;
      const auto from = i - in.left + first;
      if (lanes == kLanes<T> && from >= 0 && from + taps <= in.tokens) {
        for (int k = 0; k < taps; ++k) {
          const auto g = d * load(x.at(from + k, channel));
          store(to + k * kLanes<T>, g);
          sum[k] += g;
        }
        continue;
      }
      for (int k = 0; k < taps; ++k) {
        const auto token = from + k;
        const auto g = token < 0 || token >= in.tokens ? Vec<T>{} : d * load_lanes(x.at(token, channel), lanes);
        store(to + k * kLanes<T>, g);
        sum[k] += g;
      }
    }
    for (int k = 0; k < taps; ++k) store(dweight + k * kLanes<T>, load(dweight + k * kLanes<T>) + sum[k]);
  }

  template <int taps>
  void add_to_up(T* dup) const {
    const auto block = ceil_div(in.rank, most(1, ceil_div(in.rank, kTokens)));
    for (std::int64_t r = 0; r < in.rank; r += block) {
      with_count<kTokens>(least(block, in.rank - r), [&](auto rows) {
        add_product<decltype(rows)::value, taps, 1>(end - begin, inner + r, in.rank, products, kGroup * kLanes<T>,
                                                    dup + (1 + r) * panels.row, panels.row);
      });
    }
  }

  template <int taps>
  void add_to_inner(const T* up) const {
    for (std::int64_t v = 0; v < width; v += 2 * kLanes<T>) {
      with_count<2>((width - v) / kLanes<T>, [&](auto vectors) {
        constexpr int kVectors = decltype(vectors)::value, kRows = kSums / kVectors;
        for (std::int64_t t = 0; t < end - begin; t += kRows) {
          constexpr std::int64_t kToken = kGroup * kLanes<T>;
          add_product<kRows, kVectors, kToken>(taps * kLanes<T>, products + t * kToken, 1, up + v, width,
                                               dinner + t * width + v, width);
        }
      });
    }
  }

  void run(std::int64_t panel, const T* up, T* sums) const {
    for (std::int64_t first = 0; first < in.taps; first += kGroup) {
      with_count<kGroup>(in.taps - first, [&](auto group) {
        constexpr int kTaps = decltype(group)::value;
        multiply<kTaps>(first, panel * kLanes<T>, lanes_of<T>(in, panel), sums + first * kLanes<T>);
        add_to_up<kTaps>(sums + first * kLanes<T>);
        add_to_inner<kTaps>(up + first * kLanes<T> * width);
      });
    }
  }
};

template <class S>
void backward(const DynamicConvolution& in, const S* dy, const DynamicConvolutionGradients& out,
              const Parallel& parallel) {
  using T = typename SumOf<S>::Type;
  const Panels<T> panels(in);
  const auto width = ceil_div(in.rank, kLanes<T>) * kLanes<T>;
  const auto ranks = in.taps * kLanes<T> * width;  // of a panel, with the rank along the vector
  const auto chunk = most(kLeastChunk, ceil_div(ceil_div(in.batch * in.tokens, kMostChunks), kTile) * kTile);
  const auto chunks = ceil_div(in.batch * in.tokens, chunk), sums = panels.count * panels.size;
  // In one piece: several large ones would be fresh pages in each call.
  Buffer<T> memory(sums + panels.count * ranks + chunks * sums);
  T* const packed = memory.data();
  T* const up = packed + sums;
  T* const partial = up + panels.count * ranks;
  pack(in, panels, packed);
  pack_ranks(in, panels, width, up);
  constexpr auto kProducts = kTile * kGroup * kLanes<T>;
  const auto tile = [&](std::int64_t b, std::int64_t begin, std::int64_t end, std::int64_t c, T* scratch) {
    const auto gradient = targets_of(in, dy, b, in.channels);
    const auto inner = targets_of(in, static_cast<const T*>(in.inner), b, in.rank);
    const TokenRow<S> dx{static_cast<S*>(out.x) + b * in.tokens * in.channels, in.channels, 0};
    const Mixing<S> m{gradient, inner, dx, in.tokens, in.taps, in.rank, in.left, in.residual};
    const auto target = most(begin, inner.begin);
    T* const dinner = scratch + kProducts;
    const GradientTile<S> gradients{in,     panels, width,   x_of<S>(in, b), gradient, inner.at(target),
                                    target, end,    scratch, dinner};
    T* const to = partial + c * sums;
    if ((b * in.tokens + begin) % chunk == 0) {
      for (std::int64_t j = 0; j < sums; ++j) to[j] = 0;
    }
    for (std::int64_t j = 0; j < kTile * width; ++j) dinner[j] = 0;
    for (std::int64_t panel = 0; panel < panels.count; ++panel) {
      mix<true>(m, packed + panel * panels.size, panel * kLanes<T>, lanes_of<T>(in, panel), begin, end);
      if (target < end) gradients.run(panel, up + panel * ranks, to + panel * panels.size);
    }
    const auto of_inner = targets_of(in, static_cast<T*>(out.inner), b, in.rank);
    for (auto i = target; i < end; ++i) {
      for (std::int64_t r = 0; r < in.rank; ++r) of_inner.at(i)[r] = dinner[(i - target) * width + r];
    }
  };
  for_tiles<T>(in, in.tokens, chunk, kProducts + kTile * width, parallel, tile);
  unpack(in, panels, partial, chunks, static_cast<T*>(out.up), static_cast<T*>(out.weight), parallel);
}

}  // namespace

void dynamic_convolution(const DynamicConvolution& in, void* y, const Parallel& parallel) {
  with_type(in.type, [&](auto zero) { forward(in, static_cast<decltype(zero)*>(y), parallel); });
}

void dynamic_convolution_backward(const DynamicConvolution& in, const void* dy, const DynamicConvolutionGradients& out,
                                  const Parallel& parallel) {
  with_type(in.type, [&](auto zero) { backward(in, static_cast<const decltype(zero)*>(dy), out, parallel); });
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
