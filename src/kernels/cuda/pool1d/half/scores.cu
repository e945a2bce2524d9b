// c_i and dsigma_i for half types: 64 targets a thread block, scores S = dy X^T on the matrix units for 64 source rows
// at a time, then sums of scalars.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/backward.h"
#include "kernels/cuda/pool1d/half/matrix.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kSums = 4;  // Z, sum a s, sum a (ut)^2 s, sum a (ut)^2 m

// Of the tiles: narrow ones have all their channels in one panel.
enum class Tiles { few, many, narrow };

template <typename T, Tiles kTiles>
struct ScoreShared {
  static constexpr bool kNarrow = kTiles == Tiles::narrow;
  static constexpr Pipeline kPipe = kNarrow ? kNarrowScoresPipe : kTiles == Tiles::many ? kScoresPipe : kFewScoresPipe;
  unsigned char rows[kPipe.stages][ScoreProduct<T>::kBytes];              // panels of 64 source rows
  unsigned char dy[kNarrow ? 1 : kPipe.stages][ScoreProduct<T>::kBytes];  // and of 64 targets
  TileShared tile;
};

// At the end, in place of the rows.
struct Totals {
  float sum[kSums][kTile];
  int alive[kTile];  // whether dy is not all 0
};

// Whether the sums leave open that the target's dy is 0.
__device__ bool may_be_dead(const Totals& totals, int target) {
  const float s = totals.sum[1][target], moment = totals.sum[2][target];
  return !isfinite(s) || !isfinite(moment) || (s == 0 && moment == 0);
}

// Adds what the 16 rows of the n-th listed pair of slots, the k-th of four, give to this thread's two targets.
template <bool kTokens>
__device__ void add_pair(const Tile<kWarpgroup>& tile, int n, const float (&node)[2], const float* scores,
                         float (&sums)[kSums][2]) {
  const auto& entry = tile.shared.list[n];
  const int level = entry.level, q = lane_id() % 4 * 2;
  const bool remainder = !kTokens && level < tile.level;
  const int stride = kTokens ? kSlot : remainder ? 2 : 1;
  const int unit = entry.group * 2 * stride;
  const float radius = 0.5f * static_cast<float>(1 << level), step = 2 * radius * static_cast<float>(stride);
  const float offset[2] = {kTokens ? static_cast<float>(q) : radius - 0.5f + radius * node[0],
                           kTokens ? static_cast<float>(q + 1) : radius - 0.5f + radius * node[1]};
  const float* exponent = tile.shared.exponent + n * 2 * kSlot + q;
  const float* mass = tile.shared.mass + n * 2 * kSlot + q;
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const Target target = tile.shared.targets[matrix_row(t)];
    const int at = unit - target.begin, ends = (target.position + 1) >> level;
    const auto count = static_cast<unsigned>(target.end - target.begin);
    const auto distance = static_cast<float>(target.position - (unit << level));
    const bool odd = target.index >= 0 && (ends & 1) != 0;
#pragma unroll
    for (int slot = 0; slot < 2; ++slot) {
      const float2 e2 = *reinterpret_cast<const float2*>(exponent + slot * kSlot);
      const float2 m2 = *reinterpret_cast<const float2*>(mass + slot * kSlot);
      const float e[2] = {e2.x, e2.y}, m[2] = {m2.x, m2.y};
      const bool whole =
          remainder ? odd && ends - 1 == unit + slot * stride : static_cast<unsigned>(at + slot * stride) < count;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const bool use = kTokens ? static_cast<unsigned>(at + slot * stride + q + k) < count : whole;
        // Exactly 0 at the target's own token: in the gradient of sigma nothing else may be left of it.
        const float d = target.scale * (distance - (static_cast<float>(slot) * step + offset[k])), d2 = d * d;
        const float w = power_of_two(e[k] - target.exponent - d2), a = use ? w : 0.f;
        const float score = a == 0 ? 0.f : scores[slot * 4 + t * 2 + k], ad = a * d2;
        sums[0][t] = fmaf(a, m[k], sums[0][t]);
        sums[1][t] = fmaf(a, score, sums[1][t]);
        sums[2][t] = fmaf(ad, score, sums[2][t]);
        sums[3][t] = fmaf(ad, m[k], sums[3][t]);
      }
    }
  }
}

// Whether dy of each target has an element that is not 0: looked at where the sums do not say so; two threads a target.
template <typename T>
__device__ void mark_alive(const Problem& in, Part part, const Backward& out, const Tile<kWarpgroup>& tile,
                           Totals& totals) {
  const int k = threadIdx.x / 2, m = tile.shared.targets[k].index;
  unsigned bits = m < 0 || part == Part::near || !may_be_dead(totals, k) ? 1 : 0;
  if (bits == 0) {
    const auto* row = reinterpret_cast<const uint4*>(static_cast<const T*>(out.dy) +
                                                     in.result_start(tile.batch, in.targets) + in.result_at(m));
#pragma unroll 4
    for (int p = threadIdx.x % 2; p < in.channels / 8; p += 2) {
      const uint4 v = row[p];
      bits |= (v.x | v.y | v.z | v.w) & 0x7fff7fffu;
    }
  }
  bits |= __shfl_xor_sync(0xffffffffu, bits, 1);
  if (threadIdx.x % 2 == 0) totals.alive[k] = bits != 0;
}

// Adds up the sums of the four threads that share a target, and finishes the targets.
template <typename T>
__device__ void finish_tile(const Problem& in, Part part, const Backward& out, const Tile<kWarpgroup>& tile,
                            Totals& totals, float (&sums)[kSums][2]) {
  __syncthreads();  // all products have been made
#pragma unroll
  for (int t = 0; t < 2; ++t) {
#pragma unroll
    for (int q = 0; q < kSums; ++q) {
      sums[q][t] += __shfl_xor_sync(0xffffffffu, sums[q][t], 1);
      sums[q][t] += __shfl_xor_sync(0xffffffffu, sums[q][t], 2);
      if (lane_id() % 4 == 0) totals.sum[q][matrix_row(t)] = sums[q][t];
    }
  }
  __syncthreads();
  mark_alive<T>(in, part, out, tile, totals);
  __syncthreads();
  if (threadIdx.x >= kTile) return;
  float total[kSums];
  for (int q = 0; q < kSums; ++q) total[q] = totals.sum[q][threadIdx.x];
  finish_target<T>(in, part, out, tile.batch, tile.tile, tile.shared.targets[threadIdx.x], total,
                   totals.alive[threadIdx.x] != 0);
}

// The pieces of the targets' dy that this thread brings; a bit for each target that exists.
template <typename T, int kCount>
__device__ unsigned find_targets(const Problem& in, const Backward& out, const Tile<kWarpgroup>& tile,
                                 const T* (&pieces)[kCount]) {
  using Load = PanelLoader<T, kTile, 1>;
  const T* dy = static_cast<const T*>(out.dy) + in.result_start(tile.batch, in.targets) + Load::piece() * 8;
  unsigned exist = 0;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int m = tile.shared.targets[Load::first_row() + k * Load::kStep].index;
    exist |= (m >= 0 ? 1u : 0u) << k;
    pieces[k] = dy + in.result_at(max(m, 0));
  }
  return exist;
}

// The same of the rows of up to four listed pairs, from the first-th of `count` on.
template <typename T, int kCount>
__device__ unsigned find_sources(const Tile<kWarpgroup>& tile, int first, int count, const T* (&pieces)[kCount]) {
  using Load = PanelLoader<T, kTile, 1>;
  unsigned exist = 0;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int n = first + k, here = min(n, count - 1);
    pieces[k] = tile.row<T>(here, Load::first_row()) + Load::piece() * 8;
    exist |= (n < count && Load::first_row() < tile.shared.list[here].rows ? 1u : 0u) << k;
  }
  return exist;
}

// The four pairs from `first` on, of which there are count in all.
template <typename List>
__device__ inline void add_pairs(const Tile<kWarpgroup>& tile, const List& list, int first, int count,
                                 const float (&node)[2], const float* scores, float (&sums)[kSums][2]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (first + k >= count) break;
    if (list[first + k].level == 0) {
      add_pair<true>(tile, first + k, node, scores + k * 8, sums);
    } else {
      add_pair<false>(tile, first + k, node, scores + k * 8, sums);
    }
  }
}

template <typename T, Tiles kTiles>
__global__ void __launch_bounds__(kWarpgroup, ScoreShared<T, kTiles>::kPipe.blocks)
    matrix_score_kernel(const __grid_constant__ Problem in, Part part, const __grid_constant__ Backward out) {
  after_previous();
  extern __shared__ __align__(1024) unsigned char memory[];
  using Shared = ScoreShared<T, kTiles>;
  auto& shared = *reinterpret_cast<Shared*>(memory);
  constexpr int kStages = Shared::kPipe.stages;
  Tile<kWarpgroup> tile{in, shared.tile, static_cast<int>(blockIdx.x) % in.batch,
                        static_cast<int>(blockIdx.x) / in.batch, 0};
  if (!tile.load(part)) return;
  const int steps = Shared::kNarrow ? 1 : (in.channels + kPanel - 1) / kPanel;
  using Load = PanelLoader<T, kTile, 1>;
  static_assert(kTile == kScoreRows && Load::kStep == 2 * kSlot);
  const T* dy[Load::kCount];
  const unsigned here = find_targets(in, out, tile, dy);
  const float node[2] = {kChebyshev[lane_id() % 4 * 2], kChebyshev[lane_id() % 4 * 2 + 1]};
  float sums[kSums][2] = {};
  const typename Load::To to_rows(shared.rows[0]), to_dy(shared.dy[0]);
  const auto fetch_dy = [&](int channel, int stage) {
    Load::load(
        to_dy.after(stage), channel + Load::piece() * 8 < in.channels, [&](int k) { return dy[k] + channel; },
        [&](int k) { return (here >> k & 1) != 0; });
  };
  if constexpr (Shared::kNarrow) {
    fetch_dy(0, 0);
    copy_commit();
  }
  ScoreProduct<T> scores;
  scores.clear();
  tile.rewind<2>();
#pragma unroll 1
  while (!tile.done) {
    int count = 0, groups = 0, total = 0;  // four pairs at a time
    // What fetch brings next, and where.
    int next_group = 0, next_step = 0, next = 0;
    const T* first[Load::kCount];
    unsigned live = 0;
    const auto fetch = [&](int n) {
      if (n < total) {
        if (next_step == 0) live = find_sources(tile, next_group * 4, count, first);
        const int channel = next_step * kPanel, stage = next * ScoreProduct<T>::kBytes;
        const bool inside = channel + Load::piece() * 8 < in.channels;
        Load::load(
            to_rows.after(stage), inside, [&](int k) { return first[k] + channel; },
            [&](int k) { return (live >> k & 1) != 0; });
        if constexpr (!Shared::kNarrow) fetch_dy(channel, stage);
        if (++next_step == steps) {
          next_step = 0;
          ++next_group;
        }
      }
      next = next + 1 == kStages ? 0 : next + 1;
      copy_commit();
    };
    tile.next_groups<T, 2>([&](int listed) {
      count = listed;
      groups = (count + 3) / 4;
      total = groups * steps;
#pragma unroll
      for (int k = 0; k + 1 < kStages; ++k) fetch(k);
    });
    int n = 0, stage = 0;
#pragma unroll 1
    for (int g = 0; g < groups; ++g) {
#pragma unroll 1
      for (int s = 0; s < steps; ++s, ++n) {
        products_wait();
        copy_wait<kStages - 2>();
        publish();
        __syncthreads();
        scores.start(shared.dy[Shared::kNarrow ? 0 : stage], shared.rows[stage]);
        fetch(n + kStages - 1);
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      products_wait();
      add_pairs(tile, shared.tile.list, g * 4, count, node, scores.sum, sums);
      scores.clear();
    }
    copy_wait<0>();
  }
  auto& totals = *reinterpret_cast<Totals*>(shared.rows);
  static_assert(sizeof(Totals) <= sizeof(shared.rows));
  finish_tile<T>(in, part, out, tile, totals, sums);
}

template <typename T, Tiles kTiles>
cudaError_t start(const Problem& in, Part part, const Backward& out, int tiles, cudaStream_t stream) {
  constexpr int kBytes = shared_bytes<ScoreShared<T, kTiles>>();
  return launch<matrix_score_kernel<T, kTiles>>(dim3(tiles * in.batch), kWarpgroup, kBytes, stream, in, part, out);
}

}  // namespace

template <typename T>
cudaError_t score_tiles(const Problem& in, Part part, const Backward& out, cudaStream_t stream) {
  const int tiles = part == Part::near ? (in.targets + kTile - 1) / kTile : in.tiles;
  if (in.channels <= TileOf<T>::narrow) return start<T, Tiles::narrow>(in, part, out, tiles, stream);
  return tiles * in.batch >= kManyScores ? start<T, Tiles::many>(in, part, out, tiles, stream)
                                         : start<T, Tiles::few>(in, part, out, tiles, stream);
}

template cudaError_t score_tiles<__nv_bfloat16>(const Problem&, Part, const Backward&, cudaStream_t);
template cudaError_t score_tiles<__half>(const Problem&, Part, const Backward&, cudaStream_t);

}  // namespace contextpool::cuda
