// Weights of groups of tokens, for the bounds of the planner: the largest l log2(e) of 32 tokens, and of each block of
// the tree that, log2 of its weight and whether a target of the sequence may use the tree at all.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/plan/bounds.cuh"
#include "kernels/cuda/pool1d/plan/sort.h"

namespace contextpool::cuda {
namespace {

// The largest weight of 32 tokens, and the weight of the smallest blocks: a warp has 64 tokens at a time, the k-th
// of `blocks` blocks of 64 for k = first, first + step, ...
__device__ void leaf_logs(const Problem& in, int b, int first, int step, int blocks) {
  static_assert(kLeaf == 6 && kRows == 32);
  constexpr int kAhead = 4;  // blocks on their way at once
  const int groups = (in.tokens + kRows - 1) / kRows, lane = threadIdx.x % 32;
  for (int k0 = first; k0 < blocks; k0 += kAhead * step) {
    float v[kAhead][2];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
#pragma unroll
      for (int h = 0; h < 2; ++h) v[k][h] = token_log(in, b, ((k0 + k * step) * 2 + h) * 32 + lane);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int block = k0 + k * step;
      if (block >= blocks) break;
      float most[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[h] = group_max(v[k][h]);
        const int q = block * 2 + h;
        if (lane == 0 && q < groups) in.group_max[static_cast<std::int64_t>(b) * groups + q] = most[h];
      }
      if (!in.tree.exists()) continue;
      const bool bad = isnan(most[0]) || isnan(most[1]);
      const float top = fmaxf(most[0], most[1]);
      float total = top > minus_infinity() ? exp2f(v[k][0] - top) + exp2f(v[k][1] - top) : 0.f;
      for (int n = 16; n > 0; n /= 2) total += __shfl_xor_sync(0xffffffffu, total, n);
      if (lane == 0) {
        const std::int64_t to = static_cast<std::int64_t>(b) * in.tree.blocks + block;
        in.block_log[to] = bad ? not_a_number() : top > minus_infinity() ? top + log2f(total) : minus_infinity();
        in.block_top[to] = bad ? not_a_number() : top;
      }
    }
  }
}

// Of long sequences; a warp has 64 tokens. Clears the counts.
__global__ void __launch_bounds__(kThreads)
    token_logs_kernel(const __grid_constant__ Problem in, int blocks, int* counts, std::int64_t count) {
  after_previous();
  for (std::int64_t k = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < count;
       k += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    counts[k] = 0;
  }
  const std::int64_t g = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (g >= static_cast<std::int64_t>(in.batch) * blocks) return;
  leaf_logs(in, static_cast<int>(g / blocks), static_cast<int>(g % blocks), blocks, blocks);
}

__device__ float add_logs(float a, float b) {
  const float high = fmaxf(a, b), low = fminf(a, b);
  if (isnan(a) || isnan(b)) return not_a_number();
  return low == minus_infinity() ? high : high + log2f(1.f + exp2f(low - high));
}

// The weights of larger blocks, level after level, and whether a target may use them; a thread block has a sequence.
// kAlone: also makes those of the smallest blocks and clears the counts.
template <bool kAlone>
__global__ void __launch_bounds__(kLogsThreads)
    block_logs_kernel(const __grid_constant__ Problem in, const __grid_constant__ Precision precision, int* counts,
                      int chunks) {
  after_previous();
  const int b = static_cast<int>(blockIdx.x);
  if constexpr (kAlone) {
    for (int k = threadIdx.x; k < chunks * kClasses; k += kLogsThreads) counts[b * chunks * kClasses + k] = 0;
    leaf_logs(in, b, static_cast<int>(threadIdx.x) / 32, kLogsThreads / 32, in.tree.count(kLeaf));
  }
  const float* sigma = in.sigma + static_cast<std::int64_t>(b) * in.targets;
  bool some_large = false;
  for (int m0 = 0; m0 < in.targets && !some_large; m0 += 8 * kLogsThreads) {
    float size[8], most = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {  // all on their way at once
      const int m = m0 + k * kLogsThreads + static_cast<int>(threadIdx.x);
      size[k] = m < in.targets ? sigma[m] : 0.f;
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) most = fmaxf(most, size[k]);
    some_large = __syncthreads_or(level_of_size(in, precision, most) > 0) != 0;
  }
  if (threadIdx.x == 0) in.may_use_tree[b] = some_large ? 1 : 0;
  float* logs = in.block_log + static_cast<std::int64_t>(b) * in.tree.blocks;
  float* tops = in.block_top + static_cast<std::int64_t>(b) * in.tree.blocks;
  for (int k = kLeaf + 1; k <= in.tree.last; ++k) {
    const int from = in.tree.offset[k - 1 - kLeaf], to = in.tree.offset[k - kLeaf];
    for (int c = threadIdx.x; c < in.tree.count(k); c += kLogsThreads) {
      const int left = from + 2 * c;
      const bool two = 2 * c + 1 < in.tree.count(k - 1);
      logs[to + c] = add_logs(logs[left], two ? logs[left + 1] : minus_infinity());
      tops[to + c] = max_or_nan(tops[left], two ? tops[left + 1] : minus_infinity());
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t weigh_tokens(const Problem& in, const Precision& precision, int* counts, cudaStream_t stream) {
  if (plans_alone(in)) return cudaSuccess;
  const int chunks = sort_chunks(in.targets);
  if (in.tree.exists() && in.tokens <= kLogsAlone) {
    return launch<block_logs_kernel<true>>(dim3(in.batch), kLogsThreads, 0, stream, in, precision, counts, chunks);
  }
  const int leaves = ((in.tokens - 1) >> kLeaf) + 1;
  const std::int64_t cleared = in.sorted == nullptr ? 0 : static_cast<std::int64_t>(in.batch) * chunks * kClasses;
  const cudaError_t error =
      launch<token_logs_kernel>(blocks_for(static_cast<std::int64_t>(in.batch) * leaves, kThreads / 32), kThreads, 0,
                                stream, in, leaves, counts, cleared);
  if (error != cudaSuccess || !in.tree.exists()) return error;
  return launch<block_logs_kernel<false>>(dim3(in.batch), kLogsThreads, 0, stream, in, precision, counts, chunks);
}

}  // namespace contextpool::cuda
