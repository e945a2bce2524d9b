// A block has a tile of tokens of one row. It makes the hidden features that the tile's channels look at, which are
// those of the tile and of taps - 1 tokens more, in shared memory, and then
//
//   forward    a warp has a few tokens, its lanes the hidden features; u is their sum over the lanes
//   backward   with the gradient g of u beside them, [tokens, channels]:
//
//                dh_j = sum_k weight[:, :, k]^T g_(j + left - k)
//                dz_j = dh_j gelu'(z_j)
//                dproduct_t[k] = dz_(t + left - k)
//                dweight[:, :, k] = sum_j g_(j + left - k) h_j^T
//                dbias = sum_j dz_j
//                dout_bias = sum_i dlogit_i
//
//              where tokens j and i are counted by the block that has them in its tile.
//
// Sums over tokens are made by a fixed number of blocks, each over its tiles in their order, and then added up in a
// fixed order. The product is read once, but for the taps - 1 tokens around each tile.
#include "kernels/cuda/predict_windows/predict_windows.h"

#include <algorithm>

#include "kernels/cuda/elementwise/columns.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMostTaps = 4, kMostHidden = 64, kMostChannels = 32;
static_assert(kMostTaps * kMostHidden <= kThreads);  // in the backward a thread has a hidden feature and a tap
constexpr int kFour = 4;
constexpr std::int64_t kMostShares = 512;  // blocks of the backward

// By the number of channels, rounded up to kC: 48 KiB of shared memory hold what a tile needs.
template <int kC>
constexpr int kTile = kC > 16 ? 16 : 32;
template <int kC>
constexpr int kRows = kTile<kC> + kMostTaps - 1;

std::int64_t tile_of(const PredictWindows& in) { return in.channels > 16 ? 16 : 32; }
std::int64_t tiles_of_row(const PredictWindows& in) { return (in.tokens + tile_of(in) - 1) / tile_of(in); }
std::int64_t tiles_of(const PredictWindows& in) { return in.batch * tiles_of_row(in); }
std::int64_t shares_of(const PredictWindows& in) { return std::min(tiles_of(in), kMostShares); }
std::int64_t sums_of(const PredictWindows& in) { return in.channels * in.hidden * in.taps + in.hidden + in.channels; }

__device__ inline float normal_share(float z) { return 0.5f * (1.f + erff(z * 0.70710678118654752f)); }
__device__ inline float gelu(float z) { return z * normal_share(z); }
__device__ inline float gelu_slope(float z) { return normal_share(z) + z * 0.39894228040143268f * expf(-0.5f * z * z); }

// Sizes that fit an int: a tile's, not a row's.
struct Layer {
  int hidden, taps, left, channels, weights;
  __device__ explicit Layer(const PredictWindows& in)
      : hidden(static_cast<int>(in.hidden)),
        taps(static_cast<int>(in.taps)),
        left(static_cast<int>(in.left)),
        channels(static_cast<int>(in.channels)),
        weights(static_cast<int>(in.channels - in.sizes)) {}
};

// Of the logit of a size: tanh(u / R), the logit itself and its sigmoid.
struct Logit {
  float bounded, share;
  __device__ Logit(const PredictWindows& in, float u, float learnt) {
    bounded = in.size_range > 0 ? tanhf(u / in.size_range) : 0.f;
    const float z = learnt + (in.size_range > 0 ? in.size_range * bounded : u) + in.shift;
    share = 1.f / (1.f + expf(-z));
  }
};

// To [tap][channel][hidden].
__device__ inline void load_weights(const PredictWindows& in, const Layer& layer, float* weight) {
  for (int at = threadIdx.x; at < layer.taps * layer.channels * layer.hidden; at += kThreads) {
    const int h = at % layer.hidden, c = at / layer.hidden % layer.channels, k = at / layer.hidden / layer.channels;
    weight[at] = in.weight[(c * layer.hidden + h) * layer.taps + k];
  }
}

// bias + the shifted sum, at some hidden features from `column` on of a token that exists.
template <typename T, int kPiece>
__device__ inline void inner(const PredictWindows& in, const Layer& layer, std::int64_t row, std::int64_t token,
                             int column, float (&z)[kPiece]) {
#pragma unroll
  for (int i = 0; i < kPiece; ++i) z[i] = in.bias[column + i];
  const T* const product = static_cast<const T*>(in.product);
  for (int k = 0; k < layer.taps; ++k) {
    const std::int64_t source = token - layer.left + k;
    if (source < 0 || source >= in.tokens) continue;
    const auto values =
        load<T, kPiece>(product + ((row * in.tokens + source) * layer.taps + k) * layer.hidden + column);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) z[i] += widen(values.at[i]);
  }
}

template <int kPiece>
__device__ inline void put(float* to, const float (&values)[kPiece]) {
#pragma unroll
  for (int i = 0; i < kPiece; i += kFour) {
    store<float, kFour>(to + i, {values[i], values[i + 1], values[i + 2], values[i + 3]});
  }
}

template <typename T, int kC>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const PredictWindows in, std::int64_t row_tiles, float* log_weight, float* sigma, float* u) {
  constexpr int kPiece = kWhole<T>, kEach = kTile<kC> / kWarps;  // tokens of a warp
  alignas(16) __shared__ float weight[kMostTaps * kC * kMostHidden];
  alignas(16) __shared__ float hidden[kRows<kC> * kMostHidden];
  const Layer layer(in);
  const std::int64_t row = blockIdx.x / row_tiles, first = blockIdx.x % row_tiles * kTile<kC>;
  load_weights(in, layer, weight);
  const int pieces = layer.hidden / kPiece, rows = kTile<kC> + layer.taps - 1;
  for (int at = threadIdx.x; at < rows * pieces; at += kThreads) {
    const int r = at / pieces, column = at % pieces * kPiece;
    const std::int64_t token = first - layer.left + r;
    float h[kPiece] = {};
    if (token >= 0 && token < in.tokens) {
      inner<T, kPiece>(in, layer, row, token, column, h);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) h[i] = gelu(h[i]);
    }
    put<kPiece>(hidden + r * layer.hidden + column, h);
  }
  __syncthreads();

  const int lane = threadIdx.x % kWarp, begin = threadIdx.x / kWarp * kEach;
  const std::int64_t token = first + begin + lane;
  for (int c = 0; c < layer.channels; ++c) {
    float sum[kEach] = {};
    for (int k = 0; k < layer.taps; ++k) {
      for (int h = lane; h < layer.hidden; h += kWarp) {
        const float w = weight[(k * layer.channels + c) * layer.hidden + h];
#pragma unroll
        for (int i = 0; i < kEach; ++i) sum[i] += w * hidden[(begin + i + k) * layer.hidden + h];
      }
    }
    float mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float whole = warp_sum(sum[i]);
      if (lane == i) mine = whole;
    }
    if (lane >= kEach || token >= in.tokens) continue;
    const float bias = in.out_bias[c];
    if (c < layer.weights) {
      log_weight[(row * layer.weights + c) * in.tokens + token] = mine + bias;
    } else {
      const std::int64_t at = (row * in.sizes + c - layer.weights) * in.tokens + token;
      u[at] = mine;
      sigma[at] = in.least + in.span * Logit(in, mine, bias).share;
    }
  }
}

// Gradients of a channel at a token: of u, and of what out_bias is added to.
struct Gradient {
  float u = 0, logit = 0;
};

__device__ inline Gradient gradient_at(const PredictWindows& in, const Layer& layer, std::int64_t row,
                                       std::int64_t token, int c, const float* u, const float* dlog_weight,
                                       const float* dsigma) {
  Gradient g;
  if (token < 0 || token >= in.tokens) return g;
  if (c < layer.weights) {
    g.u = g.logit = dlog_weight[(row * layer.weights + c) * in.tokens + token];
  } else {
    const std::int64_t at = (row * in.sizes + c - layer.weights) * in.tokens + token;
    const Logit logit(in, u[at], in.out_bias[c]);
    g.logit = dsigma[at] * in.span * logit.share * (1.f - logit.share);
    g.u = in.size_range > 0 ? g.logit * (1.f - logit.bounded * logit.bounded) : g.logit;
  }
  return g;
}

// What the backward makes of a tile, in shared memory.
template <int kC>
struct Tile {
  static constexpr int kSpan = kTile<kC> + 2 * (kMostTaps - 1);
  alignas(16) float weight[kMostTaps * kC * kMostHidden];
  alignas(16) float hidden[kRows<kC> * kMostHidden];
  alignas(16) float dz[kRows<kC> * kMostHidden];
  alignas(16) float g[kSpan * kC];  // of u, from `begin` below on
  float dlogit[kTile<kC> * kC];     // of the tile
};

// Where a tile stands. Row r of hidden and dz is token first - own + r, row s of g token begin + s: tap k of a row's
// hidden features is seen by the token of g that is halo - k further on.
struct Place {
  std::int64_t row, first, begin;
  int halo, rows, own;
  __device__ Place(const Layer& layer, std::int64_t tile, std::int64_t row_tiles, int tokens)
      : row(tile / row_tiles),
        first(tile % row_tiles * tokens),
        begin(first + 2 * (layer.left - (layer.taps - 1))),
        halo(layer.taps - 1),
        rows(tokens + halo),
        own(halo - layer.left) {}
};

template <int kC>
__device__ inline void load_gradients(const PredictWindows& in, const Layer& layer, const Place& place, const float* u,
                                      const float* dlog_weight, const float* dsigma, Tile<kC>& tile) {
  const int rows = place.rows + place.halo;
  for (int at = threadIdx.x; at < rows * layer.channels; at += kThreads) {
    const int s = at % rows, c = at / rows;
    const auto gradient = gradient_at(in, layer, place.row, place.begin + s, c, u, dlog_weight, dsigma);
    tile.g[s * kC + c] = gradient.u;
    const int t = s - 2 * place.own;
    if (t >= 0 && t < kTile<kC>) tile.dlogit[t * kC + c] = gradient.logit;
  }
}

template <typename T, int kC>
__device__ inline void make_hidden(const PredictWindows& in, const Layer& layer, const Place& place, Tile<kC>& tile) {
  constexpr int kPiece = kWhole<T>;
  const int pieces = layer.hidden / kPiece;
  for (int at = threadIdx.x; at < place.rows * pieces; at += kThreads) {
    const int r = at / pieces, column = at % pieces * kPiece;
    const std::int64_t token = place.first - place.own + r;
    float z[kPiece] = {}, d[kPiece] = {};
    if (token >= 0 && token < in.tokens) {
      inner<T, kPiece>(in, layer, place.row, token, column, z);
      for (int k = 0; k < layer.taps; ++k) {
        for (int c = 0; c < layer.channels; ++c) {
          const float of_u = tile.g[(r + place.halo - k) * kC + c];
          const float* const w = tile.weight + (k * layer.channels + c) * layer.hidden + column;
#pragma unroll
          for (int i = 0; i < kPiece; i += kFour) {
            const auto four = load<float, kFour>(w + i);
#pragma unroll
            for (int j = 0; j < kFour; ++j) d[i + j] += four.at[j] * of_u;
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        d[i] *= gelu_slope(z[i]);
        z[i] = gelu(z[i]);
      }
    }
    put<kPiece>(tile.hidden + r * layer.hidden + column, z);
    put<kPiece>(tile.dz + r * layer.hidden + column, d);
  }
}

template <typename T, int kC>
__device__ inline void write_dproduct(const PredictWindows& in, const Layer& layer, const Place& place,
                                      const Tile<kC>& tile, T* dproduct) {
  constexpr int kPiece = kWhole<T>;
  const int pieces = layer.hidden / kPiece;
  for (int at = threadIdx.x; at < kTile<kC> * layer.taps * pieces; at += kThreads) {
    const int column = at % pieces * kPiece, k = at / pieces % layer.taps, t = at / pieces / layer.taps;
    if (place.first + t >= in.tokens) continue;
    Vector<T, kPiece> values;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      values.at[i] = narrow<T>(tile.dz[(t + place.halo - k) * layer.hidden + column + i]);
    }
    const std::int64_t token = place.row * in.tokens + place.first + t;
    store<T, kPiece>(dproduct + (token * layer.taps + k) * layer.hidden + column, values);
  }
}

// A thread's sums over tokens: dweight of a hidden feature and a tap, dbias of a hidden feature, dout_bias of a
// channel.
template <int kC>
struct Sums {
  int feature, tap;
  float dweight[kC] = {}, dbias = 0, dout_bias = 0;

  __device__ explicit Sums(const Layer& layer)
      : feature(static_cast<int>(threadIdx.x) % layer.hidden), tap(static_cast<int>(threadIdx.x) / layer.hidden) {}
  __device__ bool of_bias(const Layer& layer) const { return static_cast<int>(threadIdx.x) < layer.hidden; }
  __device__ bool of_out_bias(const Layer& layer) const { return static_cast<int>(threadIdx.x) < layer.channels; }

  __device__ void add(const Layer& layer, const Place& place, const Tile<kC>& tile) {
    if (tap < layer.taps) {
      for (int t = 0; t < kTile<kC>; ++t) {
        const float h = tile.hidden[(t + place.own) * layer.hidden + feature];
#pragma unroll
        for (int c = 0; c < kC; c += kFour) {
          const auto four = load<float, kFour>(tile.g + (t + place.own + place.halo - tap) * kC + c);
#pragma unroll
          for (int i = 0; i < kFour; ++i) dweight[c + i] += h * four.at[i];
        }
      }
    }
    if (of_bias(layer)) {
      for (int t = 0; t < kTile<kC>; ++t) dbias += tile.dz[(t + place.own) * layer.hidden + threadIdx.x];
    }
    if (of_out_bias(layer)) {
      for (int t = 0; t < kTile<kC>; ++t) dout_bias += tile.dlogit[t * kC + threadIdx.x];
    }
  }

  __device__ void write(const Layer& layer, float* parts) const {
    const int weights = layer.channels * layer.hidden * layer.taps;
    float* const part = parts + blockIdx.x * static_cast<std::int64_t>(weights + layer.hidden + layer.channels);
    if (tap < layer.taps) {
#pragma unroll
      for (int c = 0; c < kC; ++c) {
        if (c < layer.channels) part[(c * layer.hidden + feature) * layer.taps + tap] = dweight[c];
      }
    }
    if (of_bias(layer)) part[weights + threadIdx.x] = dbias;
    if (of_out_bias(layer)) part[weights + layer.hidden + threadIdx.x] = dout_bias;
  }
};

template <typename T, int kC>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const PredictWindows in, std::int64_t tiles, std::int64_t row_tiles, const float* u,
                    const float* dlog_weight, const float* dsigma, T* dproduct, float* parts) {
  __shared__ Tile<kC> tile;
  const Layer layer(in);
  load_weights(in, layer, tile.weight);
  for (int at = threadIdx.x; at < Tile<kC>::kSpan * kC; at += kThreads)
    tile.g[at] = 0;  // of channels that do not exist
  Sums<kC> sums(layer);
  for (std::int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const Place place(layer, number, row_tiles, kTile<kC>);
    __syncthreads();
    load_gradients(in, layer, place, u, dlog_weight, dsigma, tile);
    __syncthreads();
    make_hidden<T>(in, layer, place, tile);
    __syncthreads();
    write_dproduct(in, layer, place, tile, dproduct);
    sums.add(layer, place, tile);
  }
  sums.write(layer, parts);
}

// A launch for the type and the number of channels, rounded up.
template <typename T, typename Launch>
cudaError_t with_channels(const PredictWindows& in, const Launch& launch) {
  if (in.channels <= 4) return launch.template run<T, 4>(in);
  if (in.channels <= 8) return launch.template run<T, 8>(in);
  if (in.channels <= 16) return launch.template run<T, 16>(in);
  return launch.template run<T, 32>(in);
}

template <typename Launch>
cudaError_t with_type(const PredictWindows& in, const Launch& launch) {
  switch (in.type) {
    case Type::f32: return with_channels<float>(in, launch);
    case Type::bf16: return with_channels<__nv_bfloat16>(in, launch);
    case Type::f16: return with_channels<__half>(in, launch);
    case Type::f64: break;
  }
  return cudaErrorNotSupported;
}

struct Forward {
  float *log_weight, *sigma, *u;
  cudaStream_t stream;
  template <typename T, int kC>
  cudaError_t run(const PredictWindows& in) const {
    return launch_kernel(forward_kernel<T, kC>, static_cast<unsigned>(tiles_of(in)), kThreads, stream, in,
                         tiles_of_row(in), log_weight, sigma, u);
  }
};

struct Backward {
  const float *u, *dlog_weight, *dsigma;
  void* dproduct;
  float* parts;
  cudaStream_t stream;
  template <typename T, int kC>
  cudaError_t run(const PredictWindows& in) const {
    return launch_kernel(backward_kernel<T, kC>, static_cast<unsigned>(shares_of(in)), kThreads, stream, in,
                         tiles_of(in), tiles_of_row(in), u, dlog_weight, dsigma, static_cast<T*>(dproduct), parts);
  }
};

}  // namespace

bool has_predict_windows(const PredictWindows& in) {
  return in.type != Type::f64 && in.taps <= kMostTaps && in.hidden > 0 && in.hidden <= kMostHidden &&
         in.hidden % (2 * kFour) == 0 && in.channels > 0 && in.channels <= kMostChannels && tiles_of(in) <= 0x7fffffff;
}

cudaError_t predict_windows(const PredictWindows& in, float* log_weight, float* sigma, float* u, cudaStream_t stream) {
  return with_type(in, Forward{log_weight, sigma, u, stream});
}

std::size_t predict_windows_backward_workspace(const PredictWindows& in) {
  return static_cast<std::size_t>(shares_of(in) * sums_of(in)) * sizeof(float);
}

cudaError_t predict_windows_backward(const PredictWindows& in, const float* u, const float* dlog_weight,
                                     const float* dsigma, void* dproduct, float* sums, void* workspace,
                                     cudaStream_t stream) {
  auto* const parts = static_cast<float*>(workspace);
  const auto error = with_type(in, Backward{u, dlog_weight, dsigma, dproduct, parts, stream});
  if (error != cudaSuccess) return error;
  return column_sums(parts, static_cast<int>(shares_of(in)), static_cast<int>(sums_of(in)), sums, stream);
}

}  // namespace contextpool::cuda
