// A thread walks over a run of tokens with a piece of their channels and keeps in registers the tokens that its taps
// still read, so that each is loaded once (those at the ends of a run: by both of its runs). Loads are a tile ahead.
//
// The backward is the same walk over dy with the taps reversed, which gives dx; x comes along, as
//
//   dx_j = sum_k w_k dy_(j + left - k),   dw_k = sum_j x_j dy_(j + left - k),   dbias = sum_i dy_i
//
// read the same tokens of dy. The sums of a block's threads are added up, then those of the blocks. Runs and blocks
// depend on sizes alone, so that all sums have one order; that of y_i is the order of its taps, in every kernel.
#include "kernels/cuda/short_convolution/short_convolution.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/elementwise/columns.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kLeastRun = 16, kMostRun = 256, kEnoughThreads = 1 << 17;  // runs are whole tiles
constexpr std::int64_t kMostShares = 1024;                                        // of the backward
constexpr int kMostTaps = 32;
constexpr int kExactTaps = 15;  // those of the mixer `depthwise`: a kernel for this number alone

// Of a thread: the tokens of a tile, so that enough loads are on their way; fewer where pieces are long, as registers
// hold two tiles. Of a multiprocessor: the blocks that its registers are shared by.
template <typename T, int kPiece, bool kBackward>
constexpr int kTileOf = sizeof(T) * kPiece >= (kBackward ? 8 : 16) || (kBackward && kPiece == 1) ? 4 : 8;
template <int kTaps, bool kBackward>
constexpr int kBlocksOf = !kBackward || kTaps <= 4 ? 4
                          : kTaps <= 16            ? 3
                                                   : 2;

__device__ inline float half_of(unsigned word, int second, __nv_bfloat16 /*type*/) {
  return __uint_as_float(second ? word & 0xffff0000u : word << 16);
}
__device__ inline float half_of(unsigned word, int second, __half /*type*/) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(second ? word >> 16 : word & 0xffffu)));
}

// A piece as it came from memory: in whole registers while it waits, which two half types share.
template <typename T, int kPiece>
struct Packed {
  using Words = std::conditional_t<sizeof(T) * kPiece == 2, Vector<unsigned short, 1>,
                                   Vector<unsigned, static_cast<int>(sizeof(T) * kPiece / 4)>>;
  Words words;
  __device__ void widen_to(float (&to)[kPiece]) const {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if constexpr (sizeof(T) == 4) {
        to[i] = __uint_as_float(words.at[i]);
      } else {
        const unsigned word = words.at[i / 2];
        to[i] = half_of(word, i % 2, T{});
      }
    }
  }
};

struct Walk {
  int tokens, channels, taps, left;
  bool residual;
  const float *weight, *bias;
  const void* from;  // what the taps read: x, or dy
  std::int64_t from_batch;
  int from_token;
  const void* beside;  // x, in the backward
  std::int64_t beside_batch;
  int beside_token;
  void* to;    // contiguous
  int run;     // tokens of a run
  int runs;    // of a row
  int all;     // runs of all rows
  int across;  // threads side by side in a block, a power of 2; the others have later runs
  int groups;  // blocks side by side
  float* parts;
};

// The channels of one thread, and where it stands.
template <typename T, int kTaps, int kPiece, bool kBackward>
struct Walker {
  using Piece = Vector<T, kPiece>;
  using Waiting = Packed<T, kPiece>;
  static constexpr int kTile = kTileOf<T, kPiece, kBackward>;
  static constexpr bool kExact = kTaps == kExactTaps;  // else there are kTaps or fewer

  const Walk& in;
  const T *from, *beside;
  T* to;
  int channel, end;
  float weight[kTaps][kPiece], start[kPiece];
  float window[kTaps - 1 + kTile][kPiece];  // tokens i - left, ...
  float dweight[kTaps][kPiece], dbias[kPiece];

  __device__ explicit Walker(const Walk& walk, int own_channel) : in(walk), channel(own_channel) {
#pragma unroll
    for (int c = 0; c < kPiece; ++c) {
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {
        weight[k][c] = (kExact || k < in.taps) && channel < in.channels ? weight_of(k, c) : 0.f;
        dweight[k][c] = 0;
      }
      start[c] = !kBackward && in.bias != nullptr && channel < in.channels ? in.bias[channel + c] : 0.f;
      dbias[c] = 0;
    }
  }

  // The residual is a tap of 1 more.
  __device__ float weight_of(int k, int c) const {
    const int tap = kBackward ? in.taps - 1 - k : k;
    const float w = in.weight[static_cast<std::int64_t>(tap) * in.channels + channel + c];
    return w + (in.residual && k == in.left ? 1.f : 0.f);
  }

  __device__ bool in_row(int token) const { return static_cast<unsigned>(token) < static_cast<unsigned>(in.tokens); }
  __device__ static Waiting piece_at(const T* memory) { return *reinterpret_cast<const Waiting*>(memory); }
  __device__ const T* row_at(int token) const { return from + static_cast<std::int64_t>(token) * in.from_token; }
  __device__ const T* x_at(int token) const { return beside + static_cast<std::int64_t>(token) * in.beside_token; }

  // What the tile at token i needs and the one before it did not; zeros outside of the row.
  __device__ void fetch(int i, Waiting* next, Waiting* next_x) const {
    const int token = i - in.left + kTaps - 1;
    if (token >= 0 && token + kTile <= in.tokens && i + kTile <= end) {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        next[t] = piece_at(row_at(token) + t * in.from_token);
        if (kBackward) next_x[t] = piece_at(x_at(i) + t * in.beside_token);
      }
    } else {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        next[t] = in_row(token + t) ? piece_at(row_at(token + t)) : Waiting{};
        if (kBackward) next_x[t] = i + t < end ? piece_at(x_at(i + t)) : Waiting{};
      }
    }
  }

  __device__ void multiply(int k, int t, const float (&own)[kPiece], float (&sum)[kPiece]) {
#pragma unroll
    for (int c = 0; c < kPiece; ++c) {
      sum[c] = fmaf(weight[k][c], window[t + k][c], sum[c]);
      if (kBackward) dweight[k][c] = fmaf(own[c], window[t + k][c], dweight[k][c]);
    }
  }
  __device__ void put(int token, const float (&sum)[kPiece]) {
    Piece result;
#pragma unroll
    for (int c = 0; c < kPiece; ++c) result.at[c] = narrow<T>(sum[c]);
    store<T, kPiece>(to + static_cast<std::int64_t>(token) * in.channels, result);
  }

  // The tile at token i, where all that its taps read is in the row; own: of x.
  __device__ void inside(int i, const Waiting (&own)[kTile]) {
    float sum[kTile][kPiece], x[kTile][kPiece];
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
#pragma unroll
      for (int c = 0; c < kPiece; ++c) sum[t][c] = start[c];
      if (kBackward) own[t].widen_to(x[t]);
      if constexpr (kExact) {
#pragma unroll
        for (int k = 0; k < kTaps; ++k) multiply(k, t, x[t], sum[t]);
        put(i + t, sum[t]);
      }
    }
    if constexpr (!kExact) {
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {  // tap by tap, so that their number is asked for once
        if (k >= in.taps) break;
#pragma unroll
        for (int t = 0; t < kTile; ++t) multiply(k, t, x[t], sum[t]);
      }
#pragma unroll
      for (int t = 0; t < kTile; ++t) put(i + t, sum[t]);
    }
  }

  // The same at the ends of a row, from memory: only the taps that fall on tokens count.
  __device__ void at_end(int i) {
    const int after = i + kTile < end ? i + kTile : end;
#pragma unroll 1
    for (int token = i; token < after; ++token) {
      float sum[kPiece];
#pragma unroll
      for (int c = 0; c < kPiece; ++c) sum[c] = start[c];
#pragma unroll 1
      for (int k = 0; k < in.taps; ++k) {
        const int other = token - in.left + k;
        if (!in_row(other)) continue;
        float values[kPiece];
        piece_at(row_at(other)).widen_to(values);
#pragma unroll
        for (int c = 0; c < kPiece; ++c) sum[c] = fmaf(weight_of(k, c), values[c], sum[c]);
      }
      put(token, sum);
    }
    if constexpr (kBackward) {
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {
        if (!kExact && k >= in.taps) break;
#pragma unroll 1
        for (int token = i; token < after; ++token) {
          const int other = token - in.left + k;
          if (!in_row(other)) continue;
          float values[kPiece], own[kPiece];
          piece_at(row_at(other)).widen_to(values);
          piece_at(x_at(token)).widen_to(own);
#pragma unroll
          for (int c = 0; c < kPiece; ++c) dweight[k][c] = fmaf(own[c], values[c], dweight[k][c]);
        }
      }
    }
  }

  __device__ void run(int row, int begin) {
    end = begin + in.run < in.tokens ? begin + in.run : in.tokens;
    from = static_cast<const T*>(in.from) + row * in.from_batch + channel;
    to = static_cast<T*>(in.to) + static_cast<std::int64_t>(row) * in.tokens * in.channels + channel;
    if (kBackward) beside = static_cast<const T*>(in.beside) + row * in.beside_batch + channel;
    Waiting next[kTile], next_x[kTile];
    fetch(begin, next, next_x);
#pragma unroll
    for (int e = 0; e < kTaps - 1; ++e) {
      const int token = begin - in.left + e;
      const Waiting piece = in_row(token) ? piece_at(row_at(token)) : Waiting{};
      piece.widen_to(window[e]);
      if (begin == 0) count(window[e]);
    }
#pragma unroll 1
    for (int i = begin; i < end; i += kTile) {
      Waiting own[kTile];
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        next[t].widen_to(window[kTaps - 1 + t]);
        count(window[kTaps - 1 + t]);
        if (kBackward) own[t] = next_x[t];
      }
      if (i + kTile < end) fetch(i + kTile, next, next_x);
      if (i >= in.left && i - in.left + in.taps - 1 + kTile <= in.tokens && i + kTile <= end) {
        inside(i, own);
      } else {
        at_end(i);
      }
#pragma unroll
      for (int e = 0; e < kTaps - 1; ++e) {
#pragma unroll
        for (int c = 0; c < kPiece; ++c) window[e][c] = window[e + kTile][c];
      }
    }
  }

  // For dbias. What comes into the window of all runs of a row, and what the first begins with, is each token once.
  __device__ void count(const float (&dy)[kPiece]) {
    if constexpr (kBackward) {
#pragma unroll
      for (int c = 0; c < kPiece; ++c) dbias[c] += dy[c];
    }
  }
};

// The sums of a block's threads: parts [shares, taps + 1, channels].
template <typename T, int kTaps, int kPiece>
__device__ void add_up(const Walker<T, kTaps, kPiece, true>& walker, int group, int share) {
  __shared__ float shared[(kTaps + 1) * kPiece][kThreads];
  const Walk& in = walker.in;
#pragma unroll
  for (int c = 0; c < kPiece; ++c) {
#pragma unroll
    for (int k = 0; k < kTaps; ++k) shared[k * kPiece + c][threadIdx.x] = walker.dweight[k][c];
    shared[kTaps * kPiece + c][threadIdx.x] = walker.dbias[c];
  }
  __syncthreads();
  const int columns = in.across * kPiece;
  for (int j = static_cast<int>(threadIdx.x); j < (in.taps + 1) * columns; j += kThreads) {
    const int k = j / columns, column = j % columns, channel = group * columns + column;
    if (channel >= in.channels) continue;
    const float* const row = shared[(k < in.taps ? k : kTaps) * kPiece + column % kPiece];
    float sum = 0;
    for (int thread = column / kPiece; thread < kThreads; thread += in.across) sum += row[thread];
    const int tap = k < in.taps ? in.taps - 1 - k : in.taps;
    in.parts[(static_cast<std::int64_t>(share) * (in.taps + 1) + tap) * in.channels + channel] = sum;
  }
}

template <typename T, int kTaps, int kPiece, bool kBackward>
__global__ void __launch_bounds__(kThreads, kBlocksOf<kTaps, kBackward>) walk_kernel(const Walk in) {
  const int group = static_cast<int>(blockIdx.x % in.groups), later = static_cast<int>(threadIdx.x) / in.across;
  const int share = static_cast<int>(blockIdx.x / in.groups), shares = static_cast<int>(gridDim.x / in.groups);
  const int channel = (group * in.across + static_cast<int>(threadIdx.x) % in.across) * kPiece;
  const int at_once = kThreads / in.across;
  Walker<T, kTaps, kPiece, kBackward> walker(in, channel);
  if (channel < in.channels) {
    for (int run = share * at_once + later; run < in.all; run += shares * at_once) {
      const int row = run / in.runs;
      walker.run(row, (run - row * in.runs) * in.run);
    }
  }
  if constexpr (kBackward) add_up(walker, group, share);
}

// How a problem is cut up for pieces of so many channels.
struct Plan {
  Plan(const ShortConvolution& in, int piece, bool backward) {
    const std::int64_t pieces = (in.channels + piece - 1) / piece;
    while (across < kWarp && across < pieces) across *= 2;
    groups = (pieces + across - 1) / across;
    const std::int64_t each = (in.batch * in.tokens * pieces + kEnoughThreads - 1) / kEnoughThreads;
    run = (std::clamp(each, kLeastRun, kMostRun) + kLeastRun - 1) / kLeastRun * kLeastRun;
    runs = (in.tokens + run - 1) / run;
    const std::int64_t at_once = kThreads / across;
    shares = (in.batch * runs + at_once - 1) / at_once;
    if (backward) shares = std::min(shares, kMostShares);
  }
  std::int64_t across = 1, groups = 0, run = 0, runs = 0, shares = 0;
};

// What moves over memory, for both directions.
struct Job {
  const ShortConvolution& in;
  const void* dy;  // of the backward, else null
  void* to;
  float* parts;
  cudaStream_t stream;

  template <typename T, int kTaps, int kPiece, bool kBackward>
  cudaError_t run() const {
    const Plan plan(in, kPiece, kBackward);
    const std::int64_t blocks = plan.groups * plan.shares, row = in.tokens * in.channels;
    if (blocks >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
    Walk walk{};
    walk.tokens = static_cast<int>(in.tokens);
    walk.channels = static_cast<int>(in.channels);
    walk.taps = static_cast<int>(in.taps);
    walk.left = static_cast<int>(kBackward ? in.taps - 1 - in.left : in.left);
    walk.residual = in.residual;
    walk.weight = in.weight;
    walk.bias = kBackward ? nullptr : in.bias;
    walk.from = kBackward ? dy : in.x;
    walk.from_batch = kBackward ? row : in.x_batch_stride;
    walk.from_token = static_cast<int>(kBackward ? in.channels : in.x_token_stride);
    walk.beside = in.x;
    walk.beside_batch = in.x_batch_stride;
    walk.beside_token = static_cast<int>(in.x_token_stride);
    walk.to = to;
    walk.run = static_cast<int>(plan.run);
    walk.runs = static_cast<int>(plan.runs);
    walk.all = static_cast<int>(in.batch * plan.runs);
    walk.across = static_cast<int>(plan.across);
    walk.groups = static_cast<int>(plan.groups);
    walk.parts = parts;
    return launch_kernel(walk_kernel<T, kTaps, kPiece, kBackward>, static_cast<unsigned>(blocks), kThreads, stream,
                         walk);
  }
};

// Channels of a thread, by the most taps of a kernel: as many as registers allow.
constexpr int piece_of(int taps, bool backward) { return taps == kMostTaps ? 1 : taps == 4 && !backward ? 4 : 2; }

// Which kernel, by its most taps. The last takes any address and any number of channels.
int taps_of(const ShortConvolution& in, const void* dy, const void* to, bool backward) {
  const int taps = in.taps <= 4 ? 4 : in.taps <= 8 ? 8 : in.taps == kExactTaps ? kExactTaps : kMostTaps;
  const int piece = piece_of(taps, backward);
  const std::size_t bytes = piece * (in.type == Type::f32 ? sizeof(float) : sizeof(__half));
  const bool whole = in.channels % piece == 0 && in.x_batch_stride % piece == 0 && in.x_token_stride % piece == 0 &&
                     aligned(in.x, bytes) && aligned(to, bytes) && aligned(dy, bytes);
  return whole ? taps : kMostTaps;
}

template <typename T, bool kBackward>
cudaError_t with_taps(const Job& job) {
  switch (taps_of(job.in, job.dy, job.to, kBackward)) {
    case 4: return job.run<T, 4, piece_of(4, kBackward), kBackward>();
    case 8: return job.run<T, 8, piece_of(8, kBackward), kBackward>();
    case kExactTaps: return job.run<T, kExactTaps, piece_of(kExactTaps, kBackward), kBackward>();
    default: return job.run<T, kMostTaps, piece_of(kMostTaps, kBackward), kBackward>();
  }
}

template <bool kBackward>
cudaError_t with_type(const Job& job) {
  switch (job.in.type) {
    case Type::f32: return with_taps<float, kBackward>(job);
    case Type::bf16: return with_taps<__nv_bfloat16, kBackward>(job);
    case Type::f16: return with_taps<__half, kBackward>(job);
    case Type::f64: break;
  }
  return cudaErrorNotSupported;
}

std::int64_t shares_of(const ShortConvolution& in, const void* dy, const void* dx) {
  return Plan(in, piece_of(taps_of(in, dy, dx, true), true), true).shares;
}

}  // namespace

bool short_convolution_fits(const ShortConvolution& in) {
  constexpr std::int64_t kMostCount = std::int64_t{1} << 30;
  constexpr std::int64_t kMostStride = kMostCount >> 4;  // of a token: 32 bits hold a tile's
  return in.type != Type::f64 && in.taps <= kMostTaps && in.tokens <= kMostCount &&
         in.batch * ((in.tokens + kLeastRun - 1) / kLeastRun) <= kMostCount && in.x_token_stride <= kMostStride &&
         in.channels <= kMostStride / 4;
}

cudaError_t short_convolution(const ShortConvolution& in, void* y, cudaStream_t stream) {
  return with_type<false>(Job{in, nullptr, y, nullptr, stream});
}

std::size_t short_convolution_backward_workspace(const ShortConvolution& in, const void* dy, const void* dx) {
  return static_cast<std::size_t>(shares_of(in, dy, dx) * (in.taps + 1) * in.channels) * sizeof(float);
}

cudaError_t short_convolution_backward(const ShortConvolution& in, const void* dy, void* dx, float* dweight,
                                       void* workspace, cudaStream_t stream) {
  auto* const parts = static_cast<float*>(workspace);
  const auto error = with_type<true>(Job{in, dy, dx, parts, stream});
  if (error != cudaSuccess) return error;
  const auto columns = static_cast<int>((in.taps + 1) * in.channels);
  return column_sums(parts, static_cast<int>(shares_of(in, dy, dx)), columns, dweight, stream);
}

}  // namespace contextpool::cuda
