#include "kernels/cuda/pool1d/float32/origin.h"

#include "kernels/cuda/common/launch.cuh"

namespace contextpool::cuda {
namespace {

struct Candidate {  // of the heaviest; weight -inf: none
  float weight;
  int index;

  __device__ bool beats(const Candidate& other) const {
    return weight > other.weight || (weight == other.weight && index < other.index);
  }
  // The best of so many threads of a warp, for all of them.
  __device__ void reduce(int lanes) {
    for (int k = lanes / 2; k > 0; k /= 2) {
      const Candidate other{__shfl_xor_sync(0xffffffffu, weight, k), __shfl_xor_sync(0xffffffffu, index, k)};
      if (other.beats(*this)) *this = other;
    }
  }
};

// A thread block has a sequence. kQuads: the weights of 32 tokens at a time are there.
template <bool kQuads>
__global__ void __launch_bounds__(kLogsThreads) origin_kernel(const __grid_constant__ Problem in) {
  after_previous();
  __shared__ Candidate found[kLogsThreads / 32];
  static_assert(kLogsThreads == 32 * 32 && kRows == 32);
  const int b = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  const int group_maxima = (in.tokens + kRows - 1) / kRows;
  // What counts of a weight: all of it, or (causal) that there is one.
  const auto weight = [&](float log) { return in.causal && log != minus_infinity() ? 0.f : log; };
  const auto token_weight = [&](int j) {
    return weight(j < in.tokens ? in.log_weight[static_cast<std::int64_t>(b) * in.tokens + j] * kLog2e
                                : minus_infinity());
  };
  Candidate best{minus_infinity(), 0};
  bool more = true;
#pragma unroll 1
  for (int k0 = 0; k0 < (kQuads ? group_maxima : in.tokens) && more; k0 += kLogsThreads) {
    const int k = k0 + static_cast<int>(threadIdx.x);
    Candidate one{minus_infinity(), k};
    if constexpr (kQuads) {
      if (k < group_maxima) one.weight = weight(in.group_max[static_cast<std::int64_t>(b) * group_maxima + k]);
    } else {
      one.weight = token_weight(k);
    }
    if (one.beats(best)) best = one;
    more = !in.causal || __syncthreads_or(best.weight == 0) == 0;
  }
  best.reduce(32);
  if (lane == 0) found[threadIdx.x / 32] = best;
  __syncthreads();
  best = found[lane];
  best.reduce(kLogsThreads / 32);
  if constexpr (kQuads) {  // and which of the 32
    const int j = best.index * kRows + lane;
    best = {token_weight(j), j};
    best.reduce(32);
  }
  const float* row = static_cast<const float*>(in.x) + in.x_start(b) + best.index * in.x_token_stride;
  float* origin = in.origin_of(b);
  for (int d = threadIdx.x; d < origin_width(in.channels); d += kLogsThreads) {
    const float v = d < in.channels && best.weight != minus_infinity() ? row[d] : 0.f;
    origin[d] = isfinite(v) ? v : 0.f;
  }
}

}  // namespace

cudaError_t find_origin(const Problem& in, bool group_maxima, cudaStream_t stream) {
  return group_maxima ? launch<origin_kernel<true>>(dim3(in.batch), kLogsThreads, 0, stream, in)
                      : launch<origin_kernel<false>>(dim3(in.batch), kLogsThreads, 0, stream, in);
}

}  // namespace contextpool::cuda
