// A thread block's way over the patches it needs: found by all threads at once, then brought to shared memory a few at
// a time, the next ones on their way while these are used.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool2d/product.cuh"

namespace contextpool::cuda::maps {

// Which tile and which channels a thread block works on.
struct Block {
  std::int64_t batch;
  int tile_row, tile_column;
  int chunk;
  int patch_row, patch_column;  // of this warp
  bool inside;                  // whether that patch is on the grid

  __device__ Block(const Grid& grid, int chunks) {
    const unsigned tile = blockIdx.x / chunks, tiles = grid.tiles();
    chunk = static_cast<int>(blockIdx.x % chunks);
    batch = tile / tiles;
    tile_row = static_cast<int>(tile % tiles) / grid.tile_columns();
    tile_column = static_cast<int>(tile % tiles) % grid.tile_columns();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    patch_row = tile_row * kSide + warp / kSide;
    patch_column = tile_column * kSide + warp % kSide;
    inside = patch_row < grid.patch_rows() && patch_column < grid.patch_columns();
  }
};

// Cell k of a patch.
struct Cell {
  int row, column;
  __device__ Cell(int patch_row, int patch_column, int k)
      : row(patch_row * kPatch + k / kPatch), column(patch_column * kPatch + k % kPatch) {}
  __device__ int index(const Grid& grid) const { return row * grid.columns + column; }
  __device__ bool on(const Grid& grid) const { return grid.has(row, column); }
};

struct Patch {
  int row, column;
  unsigned bits;  // bit k: cell k is to be read; bit kCells + w: warp w uses the patch
  // Which of the bands of 8 patches along a row it is in.
  __device__ int band() const {
    static_assert(kMaxSide / kPatch / 8 <= 1 << 12);
    return row << 12 | column / 8;
  }
  __device__ bool live(int cell) const { return (bits >> cell & 1u) != 0; }
  __device__ bool used_by(int warp) const { return (bits >> (kCells + warp) & 1u) != 0; }
};

// Patches of a grid that may lie within `radius` pixels of a box; none if that is negative.
struct Range {
  int row, column, rows, columns;
  __device__ Range(const Grid& grid, const Box& box, int radius) {
    const auto first = [&](int edge, int step) { return max(0, (edge - radius) / step) / kPatch; };
    const auto last = [&](int edge, int step, int cells) { return min((edge + radius) / step, cells - 1) / kPatch; };
    row = first(box.top, grid.step_h);
    column = first(box.left, grid.step_w);
    rows = radius < 0 ? 0 : last(box.bottom, grid.step_h, grid.rows) - row + 1;
    columns = radius < 0 ? 0 : last(box.right, grid.step_w, grid.columns) - column + 1;
  }
};

// The radius of a disc, as Range takes it; -1: no disc.
template <typename T>
__device__ int radius_of(T reach) {
  return reach < 0 ? -1 : static_cast<int>(fmin(ceil(sqrt(reach)), static_cast<T>(kMaxSide)));
}

// What a kernel keeps in shared memory, which it is given at launch: more than a kernel may ask for by itself.
template <typename Shared>
__device__ Shared& shared_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return *reinterpret_cast<Shared*>(memory);
}

template <typename S, int kChannels>
struct Stages {
  alignas(16) S row[2][kStage<S, kChannels>][kCells][kPitch<S, kChannels>];
  Patch list[kThreads];
  int count[kWarps];
};

// One number, as copy16 brings 16 bytes.
template <typename T>
__device__ void copy_one(T* shared, const T* global) {
  const auto s = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(s), "l"(global), "n"(sizeof(T)));
}

// A patch, by one warp: 16 bytes a lane. Cells that are not live become 0.
template <typename S, int kChannels>
__device__ void bring(S (&to)[kCells][kPitch<S, kChannels>], const Features<S>& features, const Grid& grid,
                      const Patch& patch) {
  constexpr int kPiece = 16 / sizeof(S), kPieces = kChannels / kPiece;
  const int lane = static_cast<int>(threadIdx.x) % 32, c = lane % kPieces * kPiece;
  const S* corner = features.row(Cell(patch.row, patch.column, 0).index(grid)) + c;
  const std::int64_t line = features.stride * grid.columns;
#pragma unroll 2
  for (int k = 0; k < kCells; k += 32 / kPieces) {
    const int cell = k + lane / kPieces;
    const S* row = corner + cell / kPatch * line + cell % kPatch * features.stride;
    if (features.aligned) {
      const bool valid = patch.live(cell) && c < features.channels;
      copy16(&to[cell][c], valid ? row : features.first, valid);
    } else {
      for (int e = 0; e < kPiece; ++e) {
        to[cell][c + e] = patch.live(cell) && c + e < features.channels ? row[e] : Storage<S>::store(0);
      }
    }
  }
}

// Takes a row of channels off a patch, by the warp that has brought it.
template <int kChannels>
__device__ void take_off(float (&rows)[kCells][kPitch<float, kChannels>], const float* row, int channels) {
  constexpr int kPieces = kChannels / 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, c = lane % kPieces * 4;
  if (c >= channels) return;
  const float4 off = *reinterpret_cast<const float4*>(row + c);
#pragma unroll 2
  for (int k = 0; k < kCells; k += 32 / kPieces) {
    auto* at = reinterpret_cast<float4*>(&rows[k + lane / kPieces][c]);
    *at = make_float4(at->x - off.x, at->y - off.y, at->z - off.z, at->w - off.w);
  }
}

// bits(row, column): those of a patch, 0 if it is not needed; prepare(half, slot, patch): starts to bring it, by one
// warp; arrived(half, slot): called by the same, once it is there; use(half, slot, patch): by the warps that use it.
template <typename S, int kChannels, typename Bits, typename Prepare, typename Arrived, typename Use>
__device__ void walk(Stages<S, kChannels>& shared, const Range& range, Bits bits, Prepare prepare, Arrived arrived,
                     Use use) {
  constexpr int kSlots = kStage<S, kChannels>;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, total = range.rows * range.columns;
  for (int base = 0; base < total; base += kThreads) {
    Patch own = {0, 0, 0};
    if (base + thread < total) {
      own.row = range.row + (base + thread) / range.columns;
      own.column = range.column + (base + thread) % range.columns;
      own.bits = bits(own.row, own.column);
    }
    const unsigned votes = __ballot_sync(kAll, own.bits != 0);
    if (thread % 32 == 0) shared.count[warp] = __popc(votes);
    __syncthreads();
    int place = __popc(votes & ((1u << thread % 32) - 1)), patches = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) place += shared.count[w];
      patches += shared.count[w];
    }
    if (own.bits != 0) shared.list[place] = own;
    __syncthreads();
    const auto start = [&](int stage) {
      for (int slot = warp; slot < kSlots && stage * kSlots + slot < patches; slot += kWarps) {
        prepare(stage % 2, slot, shared.list[stage * kSlots + slot]);
      }
      copy_commit();
    };
    start(0);
    for (int stage = 0; stage * kSlots < patches; ++stage) {
      start(stage + 1);
      copy_wait<1>();
      for (int slot = warp; slot < kSlots && stage * kSlots + slot < patches; slot += kWarps) arrived(stage % 2, slot);
      __syncthreads();
      for (int slot = 0; slot < kSlots && stage * kSlots + slot < patches; ++slot) {
        const Patch patch = shared.list[stage * kSlots + slot];
        if (patch.used_by(warp)) use(stage % 2, slot, patch);
      }
      __syncthreads();
    }
  }
}

}  // namespace contextpool::cuda::maps
