// A tile of 64 targets and the source rows it needs, in groups of some slots of 8 rows.
//
// Groups are aligned absolutely, and a target's weight is exactly 0 outside its own sources: a target's sums have the
// same bits whoever shares its tile. (The matrix units add 16 products at a time; groups are whole such sixteens.)
#pragma once

#include <type_traits>

#include "kernels/cuda/pool1d/problem.cuh"

namespace contextpool::cuda {

enum class Part { all, near, far };  // near: only the last tokens of causal targets of the tree; far: all but those

// Rows of a group: 8 kSlots tokens (level 0), kSlots blocks of a level, or kSlots even blocks (what remainders are made
// of: left children).
template <int kSlots>
struct Source {
  static constexpr int kShift = kSlots == 2 ? 1 : kSlots == 4 ? 2 : 3;
  static_assert(kSlots == 1 << kShift);
  int level;
  bool remainder;

  __device__ int group_of(int unit) const { return unit >> (kShift + (level == 0 ? 3 : remainder ? 1 : 0)); }
  __device__ int block(int group, int r) const { return (group * kSlots + r / kSlot) << (remainder ? 1 : 0); }
  __device__ bool needed(const Target& t, int group) const {
    if (remainder) {
      const int ends = (t.position + 1) >> level;
      return t.index >= 0 && (ends & 1) != 0 && group_of(ends - 1) == group;
    }
    return t.begin < t.end && group_of(t.begin) <= group && group_of(t.end - 1) >= group;
  }
};

struct TileShared {
  Target targets[kTile];
  struct {
    const void* first;  // row r is at first + (r % 8) * row + (r / 8) * slot, in elements
    std::int64_t row, slot;
    int level, group;
    int rows;  // that exist, from the first on
  } list[kListRows / (2 * kSlot)];
  float exponent[kListRows];  // of the listed rows; -inf: no live source
  float mass[kListRows];      // of nodes; of tokens, whose mass is 1, what float32's exponents lack (see Exponent)
  int warp_count[kThreads / 32];
  struct {
    int begin, end, first, last, valid;  // sources, positions; targets 0 .. valid - 1
  } half[2];                             // of 32 targets each
  struct {
    int level, base, last_group;
  } walk;
  unsigned remainders[2][kClasses];  // of 32 targets each, by level: a bit for each group that is a remainder of one
};

// kBlock: threads of the thread block.
template <int kBlock>
struct Tile {
  const Problem& in;
  TileShared& shared;
  int batch, tile, level;
  bool done = false;  // whether next_groups() has nothing more to give

  // Reads the targets. False: no such tile.
  __device__ bool load(Part part) {
    level = 0;
    const bool sorted = in.sorted != nullptr && part != Part::near;
    const int k = threadIdx.x, lane = threadIdx.x & 31, m = tile * kTile + k;
    Target t{0, 0, 0, 0, 0, 0, -1, 1};
    if (k < kTile) {  // asked for before it is known whether the tile exists: one wait instead of two
      if (sorted) {
        t = in.sorted[static_cast<std::int64_t>(batch) * in.tiles * kTile + m];
      } else if (m < in.targets) {
        t = in.plan[static_cast<std::int64_t>(batch) * in.targets + m];
      }
    }
    if (sorted) {
      const int start = lane <= kClasses ? in.class_tile[batch * (kClasses + 1) + lane] : 0x7fffffff;
      const int c = __popc(__ballot_sync(0xffffffffu, start <= tile)) - 1;
      if (c >= kClasses) return false;
      level = level_of_class(c);
    }
    if (k < kTile) {
      if (part == Part::near && t.index >= 0) {
        if (t.level == 0) t.index = -1;
        t.begin = t.level == 0 ? 0 : near_begin(t.position);
        t.end = t.level == 0 ? 0 : t.position + 1;
        t.level = 0;
      }
      shared.targets[k] = t;
      const bool some = t.begin < t.end, here = t.index >= 0;
      const int begin = __reduce_min_sync(0xffffffffu, some ? t.begin : 0x7fffffff);
      const int end = __reduce_max_sync(0xffffffffu, some ? t.end : 0);
      const int first = __reduce_min_sync(0xffffffffu, here ? t.position : 0x7fffffff);
      const int last = __reduce_max_sync(0xffffffffu, here ? t.position : -1);
      const int valid = __reduce_max_sync(0xffffffffu, here ? k + 1 : 0);
      if (lane == 0) shared.half[k / 32] = {begin, end, first, last, valid};
    }
    __syncthreads();
    return true;
  }

  template <int kSlots>
  __device__ Source<kSlots> source(int n) const {
    return {shared.list[n].level, shared.list[n].level < level};
  }

  // Before the first next_groups().
  template <int kSlots>
  __device__ void rewind() {
    const Source<kSlots> source{level, false};
    const int begin = min(shared.half[0].begin, shared.half[1].begin),
              end = max(shared.half[0].end, shared.half[1].end);
    const bool some = begin < end;
    done = false;
    if (threadIdx.x == 0) {
      shared.walk = {level, some ? source.group_of(begin) : 0, some ? source.group_of(end - 1) : -1};
    }
    if (!in.causal || threadIdx.x >= kTile) return;
    const Target& target = shared.targets[threadIdx.x];
    for (int m = kLeaf; m < level; ++m) {
      const int ends = (target.position + 1) >> m;
      const bool takes = target.index >= 0 && takes_remainder(target.position, m, ends - 1);
      const Source<kSlots> lower{m, true};
      const int at = takes ? lower.group_of(ends - 1) - lower.group_of(first_remainder(m)) : 0;
      const unsigned groups = __reduce_or_sync(0xffffffffu, takes ? 1u << min(at, 31) : 0u);
      if (threadIdx.x % 32 == 0) shared.remainders[threadIdx.x / 32][m - kLeaf] = groups;
    }
  }
  __device__ int first_remainder(int m) const {
    return max(0, ((min(shared.half[0].first, shared.half[1].first) + 1) >> m) - 1);
  }

  // The next groups of rows that a target needs: how many were put in shared.list, with their exponents and masses.
  // Calls when_listed(how many) as soon as the list is there: the rows can be on their way while the exponents are
  // looked up. Where it has got to is kept in shared memory, not in registers.
  template <typename T, int kSlots, typename Listed>
  __device__ int next_groups(Listed when_listed) {
    constexpr int kGroupRows = kSlots * kSlot, kGroups = kListRows / kGroupRows, kCompact = 64 / kSlots;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int lowest = in.causal && level > 0 ? kLeaf : level;
    __syncthreads();  // the list has been used
    int m = shared.walk.level, base = shared.walk.base, last_group = shared.walk.last_group, listed = 0;
#pragma unroll 1
    while (listed < kGroups) {
      if (base > last_group) {  // on to the next lower level, or done
        if (m <= lowest) break;
        --m;
        const Source<kSlots> source{m, true};
        const int last = max(shared.half[0].last, shared.half[1].last);
        base = source.group_of(first_remainder(m));
        last_group = source.group_of(max(0, ((last + 1) >> m) - 1));
        if (last_group - base >= 32) continue;  // asked for one by one, below
        const unsigned wanted = shared.remainders[0][m - kLeaf] | shared.remainders[1][m - kLeaf];
        if (listed + __popc(wanted) > kGroups) continue;
        if (threadIdx.x < 32 && (wanted >> threadIdx.x & 1) != 0) {
          enter<T>(source, listed + __popc(wanted & ((1u << threadIdx.x) - 1)), base + threadIdx.x);
        }
        listed += __popc(wanted);
        base = last_group + 1;
        continue;
      }
      const Source<kSlots> source{m, m < level};
      const int group = base + threadIdx.x, valid = max(shared.half[0].valid, shared.half[1].valid);
      const int range = last_group - base + 1;
      // Neighbours' windows overlap: of few groups most are needed, and it is not worth asking for each.
      if (range <= min(kCompact, kGroups - listed)) {
        if (group <= last_group) enter<T>(source, listed + threadIdx.x, group);
        listed += range;
        base = last_group + 1;
        continue;
      }
      bool needed = false;
      for (int k = 0; k < valid && !needed && group <= last_group; ++k) {
        needed = source.needed(shared.targets[k], group);
      }
      const unsigned votes = __ballot_sync(0xffffffffu, needed);
      if (lane == 0) shared.warp_count[warp] = __popc(votes);
      __syncthreads();
      int before = 0, count = 0;
      for (int w = 0; w < kBlock / 32; ++w) {
        before += w < warp ? shared.warp_count[w] : 0;
        count += shared.warp_count[w];
      }
      const int room = kGroups - listed, at = before + __popc(votes & ((1u << lane) - 1));
      if (needed && at < room) enter<T>(source, listed + at, group);
      __syncthreads();
      base = count > room ? shared.list[kGroups - 1].group + 1 : base + kBlock;
      listed += min(count, room);
    }
    __syncthreads();
    done = base > last_group && m <= lowest;
    if (threadIdx.x == 0) shared.walk = {m, base, last_group};
    when_listed(listed);
    for (int k = threadIdx.x; k < listed * kGroupRows; k += kBlock) describe<T, kSlots>(k);
    __syncthreads();
    return listed;
  }

  template <typename T, int kSlots>
  __device__ void enter(Source<kSlots> source, int n, int group) {
    auto& to = shared.list[n];
    to.level = source.level;
    to.group = group;
    if (source.level == 0) {
      to.row = in.x_token_stride;
      to.slot = kSlot * in.x_token_stride;
      to.first = static_cast<const T*>(in.x) + in.x_start(batch) +
                 static_cast<std::int64_t>(group) * (kSlots * kSlot) * in.x_token_stride;
      to.rows = min(kSlots * kSlot, in.tokens - group * (kSlots * kSlot));
    } else {
      const std::int64_t block =
          static_cast<std::int64_t>(batch) * in.tree.blocks + in.tree.offset[source.level - kLeaf];
      to.row = in.channels;
      to.slot = static_cast<std::int64_t>(in.channels) * (source.remainder ? 2 * kNodes : kNodes);
      to.first = static_cast<const T*>(in.nodes) + (block + source.block(group, 0)) * kNodes * in.channels;
      const int left = in.tree.count(source.level) - source.block(group, 0);
      to.rows = min(kSlots, source.remainder ? (left + 1) / 2 : left) * kSlot;
    }
  }

  template <typename T, int kSlots>
  __device__ void describe(int k) {
    constexpr int kGroupRows = kSlots * kSlot;
    const int n = k / kGroupRows, group = shared.list[n].group;
    const Source<kSlots> source = this->source<kSlots>(n);
    float exponent = minus_infinity(), mass = 1;
    if (source.level == 0) {
      const int j = group * kGroupRows + k % kGroupRows;
      const float log_weight =
          j < in.tokens ? in.log_weight[static_cast<std::int64_t>(batch) * in.tokens + j] : minus_infinity();
      if constexpr (std::is_same_v<T, float>) {
        const Exponent e(log_weight);
        exponent = e.whole;
        mass = e.rest;
      } else {
        exponent = log_weight * kLog2e;
      }
    } else {
      const int b = source.block(group, k % kGroupRows);
      if (b < in.tree.count(source.level)) {
        const std::int64_t block =
            static_cast<std::int64_t>(batch) * in.tree.blocks + in.tree.offset[source.level - kLeaf] + b;
        mass = in.mass[block * kNodes + k % kNodes];  // asked for together with the exponent
        exponent = block_exponent(in.block_log[block]);
        if (isnan(exponent)) mass = 1;  // 0 times a NaN mass would not be 0
      }
    }
    shared.exponent[k] = exponent;
    shared.mass[k] = mass;
  }

  // Row first_row of the n-th listed group.
  template <typename T>
  __device__ const T* row(int n, int first_row) const {
    const auto& at = shared.list[n];
    return static_cast<const T*>(at.first) + (first_row / kSlot) * at.slot + (first_row % kSlot) * at.row;
  }

  // Whether, and from where, target t sees rows r .. r + 7 (a slot) of a listed group: rows low .. high - 1 of the slot
  // are its sources, at t = from - offset(level, row).
  template <int kSlots>
  __device__ void view(const Target& t, Source<kSlots> source, int group, int slot, int& low, int& high,
                       float& from) const {
    if (source.level == 0) {
      const int j0 = (group * kSlots + slot) * kSlot;
      low = t.begin - j0;
      high = t.end - j0;
      from = static_cast<float>(t.position - j0);
      return;
    }
    const int b = source.block(group, slot * kSlot);
    const bool sees =
        source.remainder ? t.index >= 0 && takes_remainder(t.position, source.level, b) : b >= t.begin && b < t.end;
    low = 0;
    high = sees ? kSlot : 0;
    from = static_cast<float>(t.position - (b << source.level));
  }
};

__device__ inline float row_offset(int level, int r) {
  return level == 0 ? static_cast<float>(r) : node_offset(level, r);
}

}  // namespace contextpool::cuda
