// How 64 source rows find the targets whose sources include them: groups of 32 targets whose bounds say that one may.
#pragma once

#include "kernels/cuda/backward.h"

namespace contextpool::cuda {

// Stages of targets: they arrive as long before the rows that they name are asked for as these before they are used.
__host__ __device__ constexpr int ring_of(const Pipeline& pipe) { return 2 * (pipe.stages - 1); }

// How a group of targets relates to the rows: their own sources, the remainder of a causal target, its last tokens.
enum class Use { own, remainder, near };

// Whether a target of a half tile may use rows of units (tokens, or blocks of a level) first .. end - 1.
__device__ inline bool covers(const Problem& in, const Backward& out, Use use, int batch, int level, int first, int end,
                              int half) {
  const int4 bound = out.bounds[static_cast<std::int64_t>(batch) * in.tiles * 2 + half];
  if (use == Use::own) return bound.x < end && bound.y > first;
  // Remainders are blocks of even number: one ends where (position + 1) >> level is odd.
  const int low = max((bound.z + 1) >> level, first + 1), high = min((bound.w + 1) >> level, end);
  return bound.z <= bound.w && (low < high || (low == high && (low & 1) != 0));
}

// Lists the groups among begin .. end - 1 that are covered(group), as many at a time as the thread block has threads,
// of which this part of `parts` has its share, and calls process(how many) for each list.
template <int kBlock, typename Covered, typename Process>
__device__ void over_groups(int begin, int end, int part, int parts, int* list, int* warp_count, Covered covered,
                            Process process) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  int from = 0, to = 0x7fffffff, seen = 0;  // this part's share
  if (parts > 1) {
    int mine = 0;
    for (int k = begin + threadIdx.x; k < end; k += kBlock) mine += covered(k) ? 1 : 0;
    mine = __reduce_add_sync(0xffffffffu, mine);
    __syncthreads();
    if (lane == 0) warp_count[warp] = mine;
    __syncthreads();
    int total = 0;
    for (int w = 0; w < kBlock / 32; ++w) total += warp_count[w];
    from = static_cast<int>(static_cast<std::int64_t>(total) * part / parts);
    to = static_cast<int>(static_cast<std::int64_t>(total) * (part + 1) / parts);
  }
#pragma unroll 1
  for (int base = begin; base < end && seen < to; base += kBlock) {
    const int candidate = base + threadIdx.x;
    const bool is = candidate < end && covered(candidate);
    const unsigned votes = __ballot_sync(0xffffffffu, is);
    __syncthreads();
    if (lane == 0) warp_count[warp] = __popc(votes);
    __syncthreads();
    int before = 0, count = 0;
    for (int w = 0; w < kBlock / 32; ++w) {
      before += w < warp ? warp_count[w] : 0;
      count += warp_count[w];
    }
    const int first = max(0, from - seen), last = min(count, to - seen);
    const int at = before + __popc(votes & ((1u << lane) - 1)) - first;
    if (is && at >= 0 && at < last - first) list[at] = candidate;
    seen += count;
    __syncthreads();
    if (first < last) process(last - first);
  }
}

}  // namespace contextpool::cuda
