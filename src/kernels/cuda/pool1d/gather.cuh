// How 64 source rows find the targets whose sources include them: groups of 32 targets whose bounds say that one may.
#pragma once

#include "kernels/cuda/pool1d/backward.h"

namespace contextpool::cuda {

// Stages of targets: they arrive as long before the rows that they name are asked for as these before they are used.
__host__ __device__ constexpr int ring_of(const Pipeline& pipe) { return 2 * (pipe.stages - 1); }

// The gradients of 8 blocks of a level are gathered at a time, in so many parts, level after level, the longest sums
// first; which of these pieces of work the n-th of a sequence is.
struct BlockGroup {
  int level, blocks;  // and how many blocks the level has
  int part, parts;
  int first;  // block

  __device__ BlockGroup(const Tree& tree, int n) {
    for (level = tree.last;; --level) {
      blocks = tree.count(level);
      parts = tree.parts(level);
      if (n < (blocks + 7) / 8 * parts) break;
      n -= (blocks + 7) / 8 * parts;
    }
    part = n % parts;
    first = n / parts * 8;
  }
  __device__ int end() const { return min(blocks, first + 8); }
  __device__ int count() const { return min(8, blocks - first); }
};

// How many there are.
inline int block_groups(const Tree& tree) {
  int groups = 0;
  for (int k = kLeaf; k <= tree.last; ++k) groups += (tree.count(k) + 7) / 8 * tree.parts(k);
  return groups;
}

// How a group of targets relates to the rows: their own sources, the remainder of a causal target, its last tokens.
enum class Use { own, remainder, near };

// The half tiles of which a target may use rows of units (tokens, or blocks of a level) first .. end - 1.
struct Covering {
  const Problem& in;
  const Backward& out;
  Use use;
  int batch, level, first, end;

  __device__ bool half(int k) const {
    return use == Use::near || may(out.bounds[static_cast<std::int64_t>(batch) * in.tiles * 2 + k]);
  }
  __device__ bool indexed() const { return use != Use::near && out.index != nullptr; }
  __device__ bool bundle(int k) const {
    return may(out.index[static_cast<std::int64_t>(batch) * index_size(in.tiles) + k]);
  }

 private:
  __device__ bool may(const int4& bound) const {
    if (use == Use::own) return bound.x < end && bound.y > first;
    // Remainders are blocks of even number: one ends where (position + 1) >> level is odd.
    const int low = max((bound.z + 1) >> level, first + 1), high = min((bound.w + 1) >> level, end);
    return bound.z <= bound.w && (low < high || (low == high && (low & 1) != 0));
  }
};

// What over_groups needs of shared memory. process(how many) finds the groups in list.
template <int kBlock>
struct GroupList {
  int list[2 * kBlock];
  int warp_count[kBlock / 32];
  int base, seen;  // how far it has got, kept here, not in registers, while groups are processed
};

// The first half tile from `base` on whose bundle may be covering; `end`, if there is none before that.
template <int kBlock>
__device__ int next_bundle(const Covering& covering, int base, int end, GroupList<kBlock>& shared) {
  const int last = (end - 1) / kIndexed + 1, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int from = base / kIndexed; from < last; from += kBlock) {
    const int k = from + static_cast<int>(threadIdx.x);
    const unsigned votes = __ballot_sync(0xffffffffu, k < last && covering.bundle(k));
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared.warp_count[warp] = votes == 0 ? kBlock : warp * 32 + __ffs(votes) - 1;
    __syncthreads();
    int found = kBlock;
    for (int w = 0; w < kBlock / 32; ++w) found = min(found, shared.warp_count[w]);
    if (found < kBlock) return max(base, (from + found) * kIndexed);
  }
  return end;
}

// Lists the groups among begin .. end - 1 that may be covering, and calls process(how many) whenever there are as many
// as the thread block has threads, and at the end. Of all of them, this part of `parts` has its share.
template <int kBlock, typename Process>
__device__ void over_groups(const Covering& covering, int begin, int end, int part, int parts,
                            GroupList<kBlock>& shared, Process process) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const bool indexed = covering.indexed();
  const auto start_of = [&](int base) {
    return indexed && base < end ? next_bundle<kBlock>(covering, base, end, shared) : base;
  };
  int from = 0, to = 0x7fffffff, seen = 0;  // this part's share
  if (parts > 1) {
    int mine = 0;
#pragma unroll 1
    for (int base = start_of(begin); base < end; base = start_of(base + kBlock)) {
      const int candidate = base + static_cast<int>(threadIdx.x);
      mine += candidate < end && covering.half(candidate) ? 1 : 0;
    }
    mine = __reduce_add_sync(0xffffffffu, mine);
    __syncthreads();
    if (lane == 0) shared.warp_count[warp] = mine;
    __syncthreads();
    int total = 0;
    for (int w = 0; w < kBlock / 32; ++w) total += shared.warp_count[w];
    from = static_cast<int>(static_cast<std::int64_t>(total) * part / parts);
    to = static_cast<int>(static_cast<std::int64_t>(total) * (part + 1) / parts);
  }
  int listed = 0, base = begin;
#pragma unroll 1
  for (bool more = true; more;) {
    base = seen < to ? start_of(base) : end;
    more = base < end;
    if (more) {
      const int candidate = base + static_cast<int>(threadIdx.x);
      const bool is = candidate < end && covering.half(candidate);
      const unsigned votes = __ballot_sync(0xffffffffu, is);
      __syncthreads();
      if (lane == 0) shared.warp_count[warp] = __popc(votes);
      __syncthreads();
      int before = 0, count = 0;
      for (int w = 0; w < kBlock / 32; ++w) {
        before += w < warp ? shared.warp_count[w] : 0;
        count += shared.warp_count[w];
      }
      const int first = max(0, from - seen), last = min(count, to - seen);
      const int at = before + __popc(votes & ((1u << lane) - 1)) - first;
      if (is && at >= 0 && at < last - first) shared.list[listed + at] = candidate;
      seen += count;
      listed += max(0, last - first);
      base += kBlock;
    }
    if (listed < (more ? kBlock : 1)) continue;
    if (threadIdx.x == 0) {
      shared.base = base;
      shared.seen = seen;
    }
    __syncthreads();
    process(listed);
    base = shared.base;
    seen = shared.seen;
    more = base < end;
    listed = 0;
  }
}

}  // namespace contextpool::cuda
