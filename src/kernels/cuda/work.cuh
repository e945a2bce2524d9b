// A tile of 64 targets and the source rows it needs, four slots of 8 rows (a quad) at a time, or two quads.
//
// Quads are aligned absolutely, and a target's weight is exactly 0 outside its own sources: a target's sums have the
// same bits whoever shares its tile.
#pragma once

#include "kernels/cuda/common.cuh"

namespace contextpool::cuda {

enum class Part { all, near, far };  // near: only the last tokens of causal targets of the tree; far: all but those

// Rows of a quad: 32 tokens (level 0), 4 blocks of a level, or 4 even blocks (what remainders are made of: left
// children). Lists hold groups of 2^kPair quads.
template <int kPair>
struct Source {
  int level;
  bool remainder;

  __device__ int group_of(int unit) const { return unit >> ((level == 0 ? 5 : remainder ? 3 : 2) + kPair); }
  __device__ int block(int group, int r) const { return ((group << (kPair + 2)) + r / kSlot) << (remainder ? 1 : 0); }
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
    int level, group;
    std::int64_t first, row, slot;  // row r is at first + (r % 8) * row + (r / 8) * slot, in elements of x or the nodes
  } list[kListRows / kRows];
  float exponent[kListRows];  // of the listed rows; -inf: no live source
  float mass[kListRows];
  int warp_count[kThreads / 32];
  struct {
    int begin, end, first, last, valid;
  } half[2];
};

struct Tile {
  const Problem& in;
  TileShared& shared;
  int batch, tile, level;
  int cached = -1;                                         // groups in the list, where it holds all that there are
  int begin = 0, end = 0, first = 0, last = 0, valid = 0;  // of all targets: sources, positions; targets 0 .. valid - 1

  // Reads the targets. False: no such tile.
  __device__ bool load(Part part) {
    level = 0;
    const bool sorted = in.order != nullptr && part != Part::near;
    const int k = threadIdx.x, lane = threadIdx.x & 31;
    int m = -1;
    if (k < kTile) {  // asked for before it is known whether the tile exists: one wait instead of two
      const int s = tile * kTile + k;
      m = s < in.targets ? s : -1;
      if (sorted) m = in.order[(static_cast<std::int64_t>(batch) * in.tiles + tile) * kTile + k] - 1;
    }
    if (sorted) {
      const int start = lane <= kClasses ? in.class_tile[batch * (kClasses + 1) + lane] : 0x7fffffff;
      const int c = __popc(__ballot_sync(0xffffffffu, start <= tile)) - 1;
      if (c >= kClasses) return false;
      level = level_of_class(c);
    }
    if (k < kTile) {
      Target t{0, 0, 0, 0, 0, 0, -1, 1};
      if (m >= 0) t = in.plan[static_cast<std::int64_t>(batch) * in.targets + m];
      if (part == Part::near && m >= 0) {
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
    begin = min(shared.half[0].begin, shared.half[1].begin);
    end = max(shared.half[0].end, shared.half[1].end);
    first = min(shared.half[0].first, shared.half[1].first);
    last = max(shared.half[0].last, shared.half[1].last);
    valid = max(shared.half[0].valid, shared.half[1].valid);
    return true;
  }

  template <int kPair>
  __device__ Source<kPair> source(int n) const {
    return {shared.list[n].level, shared.list[n].level < level};
  }

  // Calls process(count) for some groups of rows that somebody needs, until all were: shared.list[0 .. count), with
  // their exponents and masses.
  template <int kPair, typename Process>
  __device__ void each_group(Process process) {
    constexpr int kGroupRows = kRows << kPair, kGroups = kListRows / kGroupRows, kCompact = 16 >> kPair;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int lowest = in.causal && level > 0 ? kLeaf : level;
    if (cached >= 0) {
      if (cached > 0) process(cached);
      return;
    }
    int listed = 0;
    bool first_list = true;
    int m = level;
    Source<kPair> source{m, false};
    int base = begin < end ? source.group_of(begin) : 0, last_group = begin < end ? source.group_of(end - 1) : -1;
#pragma unroll 1
    while (true) {
      const bool more = base <= last_group;
      if (more) {
        // Neighbours' windows overlap: of few groups most are needed, and it is not worth asking for each.
        const int group = base + threadIdx.x;
        bool needed = group <= last_group && last_group - base < kCompact;
        for (int k = 0; k < valid && !needed && group <= last_group; ++k)
          needed = source.needed(shared.targets[k], group);
        const unsigned votes = __ballot_sync(0xffffffffu, needed);
        if (lane == 0) shared.warp_count[warp] = __popc(votes);
        __syncthreads();
        int before = 0, count = 0;
        for (int w = 0; w < kThreads / 32; ++w) {
          before += w < warp ? shared.warp_count[w] : 0;
          count += shared.warp_count[w];
        }
        const int room = kGroups - listed, at = before + __popc(votes & ((1u << lane) - 1));
        if (needed && at < room) enter(source, listed + at, group);
        __syncthreads();
        base = count > room ? shared.list[kGroups - 1].group + 1 : base + kThreads;
        listed += min(count, room);
      }
      if (!more) {  // on to the next lower level, or done
        if (--m >= lowest) {
          source = {m, true};
          base = source.group_of(max(0, ((first + 1) >> m) - 1));
          last_group = source.group_of(max(0, ((last + 1) >> m) - 1));
          continue;
        }
        if (first_list) cached = listed;
        if (listed == 0) return;
      }
      if (more && listed < kGroups) continue;
      for (int k = threadIdx.x; k < listed * kGroupRows; k += kThreads) describe<kPair>(k / kGroupRows, k);
      __syncthreads();
      process(listed);
      if (!more) return;
      listed = 0;
      first_list = false;
      __syncthreads();  // the list has been used
    }
  }

  template <int kPair>
  __device__ void enter(Source<kPair> source, int n, int group) {
    auto& to = shared.list[n];
    to.level = source.level;
    to.group = group;
    if (source.level == 0) {
      to.row = in.x_token_stride;
      to.slot = kSlot * in.x_token_stride;
      to.first = batch * in.x_batch_stride + static_cast<std::int64_t>(group) * (kRows << kPair) * in.x_token_stride;
    } else {
      const std::int64_t block =
          static_cast<std::int64_t>(batch) * in.tree.blocks + in.tree.offset[source.level - kLeaf];
      to.row = in.channels;
      to.slot = static_cast<std::int64_t>(in.channels) * (source.remainder ? 2 * kNodes : kNodes);
      to.first = (block + source.block(group, 0)) * kNodes * in.channels;
    }
  }

  template <int kPair>
  __device__ void describe(int n, int k) {
    constexpr int kGroupRows = kRows << kPair;
    const Source<kPair> source = this->source<kPair>(n);
    const int group = shared.list[n].group;
    float exponent = minus_infinity(), mass = 1;
    if (source.level == 0) {
      const int j = group * kGroupRows + k % kGroupRows;
      if (j < in.tokens) exponent = in.log_weight[static_cast<std::int64_t>(batch) * in.tokens + j] * kLog2e;
    } else {
      const int b = source.block(group, k % kGroupRows);
      if (b < in.tree.count(source.level)) {
        const std::int64_t block =
            static_cast<std::int64_t>(batch) * in.tree.blocks + in.tree.offset[source.level - kLeaf] + b;
        exponent = block_exponent(in.block_log[block]);
        mass = isnan(exponent) ? 1.f : in.mass[block * kNodes + k % kNodes];  // 0 times a NaN mass would not be 0
      }
    }
    shared.exponent[k] = exponent;
    shared.mass[k] = mass;
  }

  // Row first_row of the n-th listed group.
  template <typename T>
  __device__ const T* row(int n, int first_row) const {
    const auto& at = shared.list[n];
    const T* from = static_cast<const T*>(at.level == 0 ? in.x : in.nodes);
    return from + at.first + (first_row / kSlot) * at.slot + (first_row % kSlot) * at.row;
  }

  // Whether, and from where, target t sees rows r .. r + 7 (a slot) of a listed group: rows low .. high - 1 of the slot
  // are its sources, at t = from - offset(level, row).
  template <int kPair>
  __device__ void view(const Target& t, Source<kPair> source, int group, int slot, int& low, int& high,
                       float& from) const {
    if (source.level == 0) {
      const int j0 = (group << (5 + kPair)) + slot * kSlot;
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
