// A thread has a channel, whose U_k and w_k it keeps in registers, and walks over runs of tokens. The coefficients of a
// token are made where they are used, from p in shared memory: rank multiply-adds for each tap, in the backward three
// times that; this arithmetic, not memory, is what the kernels take. The residual is part of w.
//
// The backward walks over the targets i whose taps fall on the run, adds their shares of
//
//   dx_j = sum_k (w_k + U_k p_i) dy_i,   i = j + left - k
//
// to the sums of the tokens i - left, ..., i - left + K - 1, which wait in registers, and for the run's own targets
//
//   g_k = dy_i x_(i - left + k):   dw_k += g_k,   dU_k += g_k p_i^T,   dp_i = sum over k and channels of U_k^T g_k
//
// dp is summed over the lanes of a warp, then over warps, then over the blocks side by side; dU and dw over the runs of
// a block, then over blocks. All orders are fixed by the sizes.
#include "kernels/cuda/dynamic_convolution/dynamic_convolution.h"

#include <algorithm>

#include "kernels/cuda/elementwise/columns.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kMostTaps = 4, kMostRank = 16;
constexpr int kRun = 64;  // tokens
constexpr int kTile = 4;  // tokens whose loads are on their way together
constexpr int kFour = 4;
constexpr std::int64_t kMostBlocks = 1024;  // of the forward; in each, U is loaded once
constexpr std::int64_t kMostShares = 128;   // of the backward

// Sizes that fit an int: all but those of whole tensors.
struct Walk {
  int tokens, targets, before, channels, taps, rank, left;  // before: tokens that are not targets
  int groups, shares;                                       // blocks side by side, and behind each other
  int row_runs;
  std::int64_t runs;

  Walk(const DynamicConvolution& in, std::int64_t walked, std::int64_t most_shares)
      : tokens(static_cast<int>(in.tokens)),
        targets(static_cast<int>(in.targets)),
        before(static_cast<int>(in.tokens - in.targets)),
        channels(static_cast<int>(in.channels)),
        taps(static_cast<int>(in.taps)),
        rank(static_cast<int>(in.rank)),
        left(static_cast<int>(in.left)),
        groups(static_cast<int>((in.channels + kThreads - 1) / kThreads)),
        row_runs(static_cast<int>((walked + kRun - 1) / kRun)),
        runs(in.batch * row_runs) {
    shares = static_cast<int>(std::min(runs, std::max<std::int64_t>(1, most_shares)));
  }
  unsigned blocks() const { return static_cast<unsigned>(groups) * static_cast<unsigned>(shares); }
  __device__ bool is_target(int token) const { return token >= before && token < tokens; }
};

Walk forward_walk(const DynamicConvolution& in) {
  return {in, in.targets, kMostBlocks / ((in.channels + kThreads - 1) / kThreads)};
}
Walk backward_walk(const DynamicConvolution& in) { return {in, in.tokens, kMostShares}; }

// What a channel multiplies p with.
struct Taps {
  float up[kMostTaps][kMostRank], weight[kMostTaps];

  __device__ Taps(const DynamicConvolution& in, const Walk& walk, int channel) {
    const bool exists = channel < walk.channels;
#pragma unroll
    for (int k = 0; k < kMostTaps; ++k) {
      const bool has = exists && k < walk.taps;
      const float* const row = in.up + (static_cast<std::int64_t>(k) * walk.channels + channel) * walk.rank;
#pragma unroll
      for (int r = 0; r < kMostRank; ++r) up[k][r] = has && r < walk.rank ? row[r] : 0.f;
      weight[k] = has ? in.weight[static_cast<std::int64_t>(channel) * walk.taps + k] : 0.f;
      if (in.residual && k == walk.left) weight[k] += 1.f;
    }
  }

  __device__ void coefficients(const float (&p)[kMostRank], float (&c)[kMostTaps]) const {
#pragma unroll
    for (int k = 0; k < kMostTaps; ++k) {
      c[k] = weight[k];
#pragma unroll
      for (int r = 0; r < kMostRank; ++r) c[k] = fmaf(up[k][r], p[r], c[k]);
    }
  }
};

__device__ inline void take(const float* from, float (&p)[kMostRank]) {
#pragma unroll
  for (int r = 0; r < kMostRank; r += kFour) {
    const auto four = load<float, kFour>(from + r);
#pragma unroll
    for (int i = 0; i < kFour; ++i) p[r + i] = four.at[i];
  }
}

// p of the tokens [first, first + count) to shared memory, filled up with zeros.
__device__ inline void load_inner(const DynamicConvolution& in, const Walk& walk, int row, int first, int count,
                                  float* to) {
  for (int at = threadIdx.x; at < count * kMostRank; at += kThreads) {
    const int token = first + at / kMostRank, r = at % kMostRank;
    const bool has = walk.is_target(token) && r < walk.rank;
    const std::int64_t target = static_cast<std::int64_t>(row) * walk.targets + token - walk.before;
    to[at] = has ? in.inner[target * walk.rank + r] : 0.f;
  }
}

// A channel of a row of tokens; 0 where there is none.
template <typename T>
struct Column {
  const T* from;
  std::int64_t stride;
  int tokens;
  bool exists;
  __device__ float at(int token) const {
    const bool has = exists && static_cast<unsigned>(token) < static_cast<unsigned>(tokens);
    return has ? widen(from[token * stride]) : 0.f;
  }
};

template <typename T>
__device__ Column<T> column_of_x(const DynamicConvolution& in, const Walk& walk, int row, int channel) {
  return {static_cast<const T*>(in.x) + row * in.x_batch_stride + channel, in.x_token_stride, walk.tokens,
          channel < walk.channels};
}

template <typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(const DynamicConvolution in, const Walk walk, T* y) {
  alignas(16) __shared__ float inner[kRun * kMostRank];
  const int channel = static_cast<int>(blockIdx.x % walk.groups) * kThreads + static_cast<int>(threadIdx.x);
  const Taps own(in, walk, channel);
  for (std::int64_t run = blockIdx.x / walk.groups; run < walk.runs; run += walk.shares) {
    const int row = static_cast<int>(run / walk.row_runs);
    const int begin = walk.before + static_cast<int>(run % walk.row_runs) * kRun;
    const int end = begin + kRun < walk.tokens ? begin + kRun : walk.tokens;
    __syncthreads();
    load_inner(in, walk, row, begin, end - begin, inner);
    __syncthreads();
    if (channel >= walk.channels) continue;
    const auto x = column_of_x<T>(in, walk, row, channel);
    T* const to = y + (static_cast<std::int64_t>(row) * walk.targets - walk.before) * walk.channels + channel;
    float window[kMostTaps - 1 + kTile], next[kTile];  // x_(i - left), ...
#pragma unroll
    for (int e = 0; e < kMostTaps - 1; ++e) window[e] = x.at(begin - walk.left + e);
#pragma unroll
    for (int t = 0; t < kTile; ++t) next[t] = x.at(begin - walk.left + kMostTaps - 1 + t);
#pragma unroll 1
    for (int i = begin; i < end; i += kTile) {
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        window[kMostTaps - 1 + t] = next[t];
        next[t] = x.at(i + kTile - walk.left + kMostTaps - 1 + t);
      }
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
        if (i + t >= end) break;
        float p[kMostRank], c[kMostTaps], sum = 0;
        take(inner + (i + t - begin) * kMostRank, p);
        own.coefficients(p, c);
#pragma unroll
        for (int k = 0; k < kMostTaps; ++k) {
          const int token = i + t - walk.left + k;
          if (k < walk.taps && token >= 0 && token < walk.tokens) sum = fmaf(c[k], window[t + k], sum);
        }
        to[static_cast<std::int64_t>(i + t) * walk.channels] = narrow<T>(sum);
      }
#pragma unroll
      for (int e = 0; e < kMostTaps - 1; ++e) window[e] = window[e + kTile];
    }
  }
}

// Of 2 kCount values of a lane, kCount: with the lane that differs in the bit of 2 kCount half of them change hands.
// With constants all the way down, as values that are looked up by a variable would be in local memory.
template <int kCount>
__device__ inline void exchange(float (&v)[kMostRank]) {
  constexpr int kMask = 2 * kCount;
  const bool upper = (threadIdx.x & kMask) != 0;
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    const float keep = upper ? v[r + kCount] : v[r], send = upper ? v[r] : v[r + kCount];
    v[r] = keep + __shfl_xor_sync(0xffffffffu, send, kMask);
  }
  if constexpr (kCount > 1) exchange<kCount / 2>(v);
}

// The sum over the lanes of value lane / 2, of a warp that has kMostRank values a lane.
__device__ inline float sum_by_lane(float (&v)[kMostRank]) {
  static_assert(2 * kMostRank == kWarp);
  exchange<kMostRank / 2>(v);
  return v[0] + __shfl_xor_sync(0xffffffffu, v[0], 1);
}

// The tokens [begin, end) of a row, and the targets [first, last) whose taps fall on them.
struct Run {
  int row, begin, end, first, last;
  __device__ Run(const Walk& walk, std::int64_t number)
      : row(static_cast<int>(number / walk.row_runs)),
        begin(static_cast<int>(number % walk.row_runs) * kRun),
        end(begin + kRun < walk.tokens ? begin + kRun : walk.tokens),
        first(begin + walk.left - (walk.taps - 1)),
        last(end + walk.left) {}
  __device__ bool has(int token) const { return token >= begin && token < end; }
};

// A channel's sums over targets.
struct Sums {
  float dup[kMostTaps][kMostRank] = {}, dweight[kMostTaps] = {};

  // Adds what the target `token` gives, whose taps fall on x[0], x[1], ...; its share of dp to of_inner.
  __device__ void add(const Walk& walk, const Taps& own, int token, const float (&p)[kMostRank], float dy,
                      const float* x, float (&of_inner)[kMostRank]) {
#pragma unroll
    for (int k = 0; k < kMostTaps; ++k) {
      const int source = token - walk.left + k;
      if (k >= walk.taps || source < 0 || source >= walk.tokens) continue;
      const float g = dy * x[k];
      dweight[k] += g;
#pragma unroll
      for (int r = 0; r < kMostRank; ++r) {
        dup[k][r] = fmaf(g, p[r], dup[k][r]);
        of_inner[r] = fmaf(own.up[k][r], g, of_inner[r]);
      }
    }
  }

  // To [taps, rank + 1, channels].
  __device__ void write(const Walk& walk, float* part) const {
#pragma unroll
    for (int k = 0; k < kMostTaps; ++k) {
      if (k >= walk.taps) break;
      float* const of_tap = part + static_cast<std::int64_t>(k) * (walk.rank + 1) * walk.channels;
#pragma unroll
      for (int r = 0; r < kMostRank; ++r) {
        if (r < walk.rank) of_tap[static_cast<std::int64_t>(r) * walk.channels] = dup[k][r];
      }
      of_tap[static_cast<std::int64_t>(walk.rank) * walk.channels] = dweight[k];
    }
  }
};

// Walks a channel over a run: dx of its tokens, `sums`, and dp of its own targets summed over a warp, to dinner.
template <typename T>
__device__ inline void walk_back(const Walk& walk, const Run& run, const Taps& own, const Column<T>& x,
                                 const Column<T>& dy, const float* inner, float* dinner, T* dx, Sums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float window[kMostTaps - 1 + kTile], next_x[kTile], next_dy[kTile];
  float waiting[kMostTaps] = {};  // dx of the tokens i - left, ...
#pragma unroll
  for (int e = 0; e < kMostTaps - 1; ++e) window[e] = x.at(run.first - walk.left + e);
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    next_x[t] = x.at(run.first - walk.left + kMostTaps - 1 + t);
    next_dy[t] = dy.at(run.first + t - walk.before);
  }
#pragma unroll 1
  for (int i = run.first; i < run.last; i += kTile) {
    float own_dy[kTile];
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      window[kMostTaps - 1 + t] = next_x[t];
      own_dy[t] = next_dy[t];
      next_x[t] = x.at(i + kTile - walk.left + kMostTaps - 1 + t);
      next_dy[t] = dy.at(i + kTile + t - walk.before);
    }
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      const int token = i + t;
      if (token >= run.last) break;
      if (walk.is_target(token)) {
        float p[kMostRank], c[kMostTaps];
        take(inner + (token - run.first) * kMostRank, p);
        own.coefficients(p, c);
#pragma unroll
        for (int k = 0; k < kMostTaps; ++k) {
          if (k < walk.taps) waiting[k] = fmaf(c[k], own_dy[t], waiting[k]);
        }
        if (run.has(token)) {
          float of_inner[kMostRank] = {};
          sums.add(walk, own, token, p, own_dy[t], window + t, of_inner);
          const float sum = sum_by_lane(of_inner);
          if (lane % 2 == 0) dinner[(token - run.begin) * kMostRank + lane / 2] = sum;
        }
      }
      const int done = token - walk.left;
      if (x.exists && run.has(done)) dx[static_cast<std::int64_t>(done) * walk.channels] = narrow<T>(waiting[0]);
#pragma unroll
      for (int k = 0; k < kMostTaps; ++k) waiting[k] = k + 1 < kMostTaps ? waiting[k + 1] : 0.f;
    }
#pragma unroll
    for (int e = 0; e < kMostTaps - 1; ++e) window[e] = window[e + kTile];
  }
}

// The warps' sums of a run's targets, added up; to [targets, rank] of its row.
__device__ inline void write_dinner(const Walk& walk, const Run& run, const float (&dinner)[kWarps][kRun * kMostRank],
                                    float* to) {
  for (int at = threadIdx.x; at < (run.end - run.begin) * walk.rank; at += kThreads) {
    const int token = run.begin + at / walk.rank, r = at % walk.rank;
    if (!walk.is_target(token)) continue;
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += dinner[w][(token - run.begin) * kMostRank + r];
    to[static_cast<std::int64_t>(token - walk.before) * walk.rank + r] = sum;
  }
}

// parts [shares, taps, rank + 1, channels]; to_inner [groups, batch, targets, rank].
template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(const DynamicConvolution in, const Walk walk, const T* dy, T* dx, float* to_inner, float* parts) {
  alignas(16) __shared__ float inner[(kRun + kMostTaps - 1) * kMostRank];
  __shared__ float dinner[kWarps][kRun * kMostRank];
  const int group = static_cast<int>(blockIdx.x % walk.groups), share = static_cast<int>(blockIdx.x / walk.groups);
  const int channel = group * kThreads + static_cast<int>(threadIdx.x);
  const Taps own(in, walk, channel);
  Sums sums;
  for (std::int64_t number = share; number < walk.runs; number += walk.shares) {
    const Run run(walk, number);
    __syncthreads();
    load_inner(in, walk, run.row, run.first, run.last - run.first, inner);
    __syncthreads();
    const std::int64_t targets = static_cast<std::int64_t>(run.row) * walk.targets;
    const auto x = column_of_x<T>(in, walk, run.row, channel);
    const Column<T> gradient{dy + targets * walk.channels + channel, walk.channels, walk.targets, x.exists};
    T* const to = dx + static_cast<std::int64_t>(run.row) * walk.tokens * walk.channels + channel;
    walk_back(walk, run, own, x, gradient, inner, dinner[threadIdx.x / kWarp], to, sums);
    __syncthreads();
    write_dinner(walk, run, dinner, to_inner + (group * in.batch * walk.targets + targets) * walk.rank);
  }
  if (channel >= walk.channels) return;
  sums.write(walk, parts + static_cast<std::int64_t>(share) * walk.taps * (walk.rank + 1) * walk.channels + channel);
}

std::int64_t inner_count(const DynamicConvolution& in) { return in.batch * in.targets * in.rank; }
std::int64_t sums_count(const DynamicConvolution& in) { return in.taps * (in.rank + 1) * in.channels; }

struct Forward {
  void* y;
  cudaStream_t stream;
  template <typename T>
  cudaError_t run(const DynamicConvolution& in) const {
    const auto walk = forward_walk(in);
    return launch_kernel(forward_kernel<T>, walk.blocks(), kThreads, stream, in, walk, static_cast<T*>(y));
  }
};

struct Backward {
  const void* dy;
  void* dx;
  float *to_inner, *parts;
  cudaStream_t stream;
  template <typename T>
  cudaError_t run(const DynamicConvolution& in) const {
    const auto walk = backward_walk(in);
    return launch_kernel(backward_kernel<T>, walk.blocks(), kThreads, stream, in, walk, static_cast<const T*>(dy),
                         static_cast<T*>(dx), to_inner, parts);
  }
};

template <typename Launch>
cudaError_t with_type(const DynamicConvolution& in, const Launch& launch) {
  switch (in.type) {
    case Type::f32: return launch.template run<float>(in);
    case Type::bf16: return launch.template run<__nv_bfloat16>(in);
    case Type::f16: return launch.template run<__half>(in);
    case Type::f64: break;
  }
  return cudaErrorNotSupported;
}

}  // namespace

bool dynamic_convolution_fits(const DynamicConvolution& in) {
  constexpr std::int64_t kMostCount = std::int64_t{1} << 30;
  return in.type != Type::f64 && in.taps <= kMostTaps && in.rank <= kMostRank && in.tokens <= kMostCount &&
         in.channels * in.taps * (in.rank + 1) <= kMostCount && inner_count(in) <= kMostCount &&
         in.batch * ((in.tokens + kRun - 1) / kRun) <= kMostCount;
}

cudaError_t dynamic_convolution(const DynamicConvolution& in, void* y, cudaStream_t stream) {
  return with_type(in, Forward{y, stream});
}

std::size_t dynamic_convolution_backward_workspace(const DynamicConvolution& in) {
  const auto walk = backward_walk(in);
  return static_cast<std::size_t>(walk.shares * sums_count(in) + walk.groups * inner_count(in)) * sizeof(float);
}

cudaError_t dynamic_convolution_backward(const DynamicConvolution& in, const void* dy, void* dx, float* dinner,
                                         float* sums, void* workspace, cudaStream_t stream) {
  const auto walk = backward_walk(in);
  auto* const parts = static_cast<float*>(workspace);
  float* const inner_parts = walk.groups == 1 ? dinner : parts + walk.shares * sums_count(in);
  auto error = with_type(in, Backward{dy, dx, inner_parts, parts, stream});
  if (error != cudaSuccess) return error;
  error = column_sums(parts, walk.shares, static_cast<int>(sums_count(in)), sums, stream);
  if (error != cudaSuccess || walk.groups == 1) return error;
  return column_sums(inner_parts, walk.groups, static_cast<int>(inner_count(in)), dinner, stream);
}

}  // namespace contextpool::cuda
