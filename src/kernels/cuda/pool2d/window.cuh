// A warp's targets and the weights of the pixels they see, patch by patch.
#pragma once

#include "kernels/cuda/pool1d/float32/origin.h"
#include "kernels/cuda/pool2d/walk.cuh"

namespace contextpool::cuda::maps {

// The 4 x 4 targets of a warp: each lane has two, as Pairs says.
template <typename T>
struct OwnTargets {
  Target<T> target[2];
  T i[2], j[2];
  T reach;  // the largest

  // moment_reach, where given, stands in for the reach of the plan.
  __device__ OwnTargets(const Map<T>& map, const Block& block, const Target<T>* plan, const T* moment_reach) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Cell cell(block.patch_row, block.patch_column, own_row(r));
      target[r] = {0, 0, -1, 0};
      if (cell.on(map.targets)) {
        target[r] = plan[cell.index(map.targets)];
        if (moment_reach != nullptr) target[r].reach = moment_reach[cell.index(map.targets)];
      }
      i[r] = static_cast<T>(cell.row * map.targets.step_h);
      j[r] = static_cast<T>(cell.column * map.targets.step_w);
    }
    reach = max_of_warp(fmax(target[0].reach, target[1].reach));
  }

  __device__ Target<T> of(int row) const {
    return {of_row(target[0].scale, target[1].scale, row), of_row(target[0].inv, target[1].inv, row),
            of_row(target[0].reach, target[1].reach, row), 0};
  }
};

template <typename S, int kChannels>
struct SourceShared {
  SumOf<S> log_weight[2][kStage<S, kChannels>][kCells];
  SumOf<S> reach[kWarps];
};

// use(a, falloff, rows, band) for every patch of pixels that one of the warp's targets sees: the weights, d^2 inv,
// and the features in shared memory, less the origin (null: 0; float32 only). x and l are those of the map.
template <typename S, int kChannels, typename Use>
__device__ void over_sources(const Map<SumOf<S>>& map, const Block& block, const OwnTargets<SumOf<S>>& own,
                             const Features<S>& x, const SumOf<S>* origin, const SumOf<S>* l,
                             Stages<S, kChannels>& stages, SourceShared<S, kChannels>& shared, Use use) {
  using T = SumOf<S>;
  const int thread = static_cast<int>(threadIdx.x), top = block.tile_row * kSide, left = block.tile_column * kSide;
  if (thread % 32 == 0) shared.reach[thread / 32] = own.reach;
  __syncthreads();
  T farthest = shared.reach[0];
  for (int w = 1; w < kWarps; ++w) farthest = fmax(farthest, shared.reach[w]);
  const Range range(map.pixels, Box(map.targets, top, left, kSide), radius_of(farthest));
  const auto bits = [&](int row, int column) {
    const Box box(map.pixels, row, column);
    unsigned used = 0, live = 0;
    for (int w = 0; w < kWarps; ++w) {
      const bool uses = within(Box(map.targets, top + w / kSide, left + w % kSide), box, shared.reach[w]);
      used |= uses ? 1u << w : 0u;
    }
    if (used == 0) return 0u;
    for (int k = 0; k < kCells; ++k) {
      const Cell cell(row, column, k);
      const bool exists = cell.on(map.pixels) && l[cell.index(map.pixels)] != static_cast<T>(-INFINITY);
      live |= exists ? 1u << k : 0u;
    }
    return live == 0 ? 0u : live | used << kCells;
  };
  const auto prepare = [&](int half, int slot, const Patch& patch) {
    bring<S, kChannels>(stages.row[half][slot], x, map.pixels, patch);
    const int k = thread % 32;
    if (k >= kCells) return;
    T* to = &shared.log_weight[half][slot][k];
    if (patch.live(k)) {
      copy_one(to, l + Cell(patch.row, patch.column, k).index(map.pixels));
    } else {
      *to = -INFINITY;
    }
  };
  // The lane's first cell in a patch; the others are one column and two rows on.
  const T near_row = static_cast<T>(other_cell(0) / kPatch), near_column = static_cast<T>(other_cell(0) % kPatch);
  const auto arrived = [&](int half, int slot) {
    if constexpr (std::is_same_v<S, float>) {
      if (origin != nullptr) take_off<kChannels>(stages.row[half][slot], origin, x.channels);
    }
  };
  walk<S, kChannels>(stages, range, bits, prepare, arrived, [&](int half, int slot, const Patch& patch) {
    Pairs<T> a, falloff;
    const T top_row = static_cast<T>(patch.row * kPatch), left_column = static_cast<T>(patch.column * kPatch);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const T own_l = shared.log_weight[half][slot][other_cell(k)];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const T di = top_row + (near_row - own.i[r]) + k / 2 * 2, dj = left_column + (near_column - own.j[r]) + k % 2;
        const T d2 = di * di + dj * dj;
        a.at[r][k] = weight(own_l, own.target[r], d2);
        falloff.at[r][k] = d2 * own.target[r].inv;
      }
    }
    use(a, falloff, &stages.row[half][slot][0][0], patch.band());
  });
}

// The map's features from a chunk's first channel on.
template <typename S, int kChannels>
__device__ Features<S> features_of(const Map<SumOf<S>>& map, const Block& block, const Grid& grid, const S* all) {
  const std::int64_t channel = static_cast<std::int64_t>(block.chunk) * kChannels;
  return {all + block.batch * grid.cells() * map.channels + channel, map.channels,
          static_cast<int>(min(map.channels - channel, static_cast<std::int64_t>(kChannels))), map.aligned};
}

// The map's origin, likewise; null: there is none.
template <typename T, int kChannels>
__device__ const T* origin_of(const Map<T>& map, const Block& block, const T* all) {
  return all == nullptr
             ? nullptr
             : all + block.batch * origin_width(static_cast<int>(map.channels)) + std::int64_t{block.chunk} * kChannels;
}

// Thread blocks for all tiles of a grid.
template <typename T>
unsigned blocks_of(const Map<T>& map, const Grid& grid, int chunks) {
  return static_cast<unsigned>(map.batch * grid.tiles() * chunks);
}

}  // namespace contextpool::cuda::maps
