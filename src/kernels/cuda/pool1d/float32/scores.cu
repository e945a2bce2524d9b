// c_i and dsigma_i in float32: 64 targets at a time, scores S = dy X^T, then sums of scalars. (half/scores.cu has the
// half types.)
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/backward.h"
#include "kernels/cuda/pool1d/float32/product.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kStages = kPlainPipe.stages;
constexpr int kSums = 4;  // Z, sum a s, sum a (ut)^2 s, sum a (ut)^2 m

struct ScoreShared {
  float partial[kSums][4][kTile];
  int alive[kTile];  // whether dy is not all 0
  TileShared tile;
};

template <typename T>
__host__ __device__ constexpr int score_stride() {
  return TileOf<T>::score_columns + TileOf<T>::pad;
}
template <typename T>
int kept_stride(int channels) {
  return (channels + TileOf<T>::score_columns - 1) / TileOf<T>::score_columns * TileOf<T>::score_columns +
         TileOf<T>::pad;
}

// Whether dy of each target has an element that is not 0; four threads a target.
template <typename T>
__device__ void mark_alive(const Problem& in, const T* dy, ScoreShared& shared) {
  const int m = shared.tile.targets[threadIdx.x / 4].index;
  bool alive = false;
  for (int d = threadIdx.x % 4; m >= 0 && d < in.channels; d += 4) {
    alive = alive || to_float(dy[in.result_at(m) + d]) != 0;
  }
  const unsigned votes = __ballot_sync(0xffffffffu, alive) >> (threadIdx.x & 28) & 0xf;
  if (threadIdx.x % 4 == 0) shared.alive[threadIdx.x / 4] = votes != 0;
}

// Adds what the 64 rows of the g-th listed group, whose scores these are, give to this thread's four targets.
template <typename T>
__device__ void add_group(const Tile<kThreads>& tile, int g, const Scores<T>& scores,
                          const float (&node)[Scores<T>::kPer], float (&sums)[kSums][4]) {
  const TileShared& shared = tile.shared;
  const Source<8> source = tile.source<8>(g);
  const float half = 0.5f * static_cast<float>(1 << source.level);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const Target& target = shared.targets[Scores<T>::target(k)];
#pragma unroll
    for (int m = 0; m < Scores<T>::kSlots; ++m) {
      int low, high;
      float from;
      tile.view(target, source, shared.list[g].group, Scores<T>::slot(m), low, high, from);
#pragma unroll
      for (int e = 0; e < Scores<T>::kPer; ++e) {
        const int r = Scores<T>::row(e), row = g * kScoreRows + Scores<T>::slot(m) * kSlot + r;
        if (r < low || r >= high) continue;
        const bool tokens = source.level == 0;
        const float offset = tokens ? static_cast<float>(r) : half - 0.5f + half * node[e];
        const float d = target.scale * (from - offset), d2 = d * d;
        const float rest = tokens ? shared.mass[row] : 0.f, mass = tokens ? 1.f : shared.mass[row];
        const float a = target.scale == 0 ? 1.f + 0.f * target.exponent
                                          : power_of_two(shared.exponent[row] - target.exponent + rest - d2);
        if (a == 0) continue;
        const float score = scores.value(k, m, e);
        sums[0][k] += a * mass;
        sums[1][k] += a * score;
        sums[2][k] += a * d2 * score;
        sums[3][k] += a * d2 * mass;
      }
    }
  }
}

// Adds up the sums of the threads that share a target, and finishes the targets.
template <typename T>
__device__ void finish_tile(const Problem& in, Part part, const Backward& out, const Tile<kThreads>& tile,
                            ScoreShared& shared, float (&sums)[kSums][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int q = 0; q < kSums; ++q) {
      for (int lanes = Scores<T>::kLaneShare / 2; lanes > 0; lanes /= 2) {
        sums[q][k] += __shfl_xor_sync(0xffffffffu, sums[q][k], lanes);
      }
      shared.partial[q][Scores<T>::warp_of_target()][Scores<T>::target(k)] = sums[q][k];
    }
  }
  __syncthreads();
  if (threadIdx.x >= kTile) return;
  const Target target = shared.tile.targets[threadIdx.x];
  float total[kSums];
  for (int q = 0; q < kSums; ++q) {
    total[q] = 0;
    for (int s = 0; s < Scores<T>::kWarpShare; ++s) total[q] += shared.partial[q][s][threadIdx.x];
  }
  finish_target<T>(in, part, out, tile.batch, tile.tile, target, total, shared.alive[threadIdx.x] != 0);
}

// keep_dy: all channels of the targets' dy stay in shared memory, in rows of dy_stride; otherwise dy comes with the
// source rows, some channels at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads, kPlainPipe.blocks)
    score_kernel(const __grid_constant__ Problem in, Part part, const __grid_constant__ Backward out, int keep_dy,
                 int dy_stride) {
  after_previous();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ScoreShared*>(memory);
  constexpr int kColumns = TileOf<T>::score_columns, kStride = score_stride<T>();
  T* rows = reinterpret_cast<T*>(memory + (sizeof(ScoreShared) + 15) / 16 * 16);  // stages of 64 source rows
  T* dy_rows = rows + kStages * kScoreRows * kStride;                             // dy: all of it, or as many stages
  Tile<kThreads> tile{in, shared.tile, static_cast<int>(blockIdx.x) % in.batch, static_cast<int>(blockIdx.x) / in.batch,
                      0};
  if (!tile.load(part)) return;
  const int steps = (in.channels + kColumns - 1) / kColumns;
  using Load = Loader<T, kTile, kColumns>;
  static_assert(kTile == kScoreRows);
  const Load loader(in);
  const T* origin = in.origin_of(tile.batch);
  const T* dy = static_cast<const T*>(out.dy) + in.result_start(tile.batch, in.targets);
  const auto dy_row = [&](int k) {
    const int m = shared.tile.targets[Load::first_row() + k * Load::kStep].index;
    return RowAt<T>{dy + in.result_at(m), m >= 0};
  };
  mark_alive(in, dy, shared);
  if (keep_dy) {
    for (int s = 0; s < steps; ++s) loader.load(dy_rows + s * kColumns, dy_stride, s * kColumns, dy_row);
  }
  float node[Scores<T>::kPer];
#pragma unroll
  for (int e = 0; e < Scores<T>::kPer; ++e) node[e] = kChebyshev[Scores<T>::row(e)];
  float sums[kSums][4] = {};
  Scores<T> scores;
  scores.clear();
  tile.rewind<8>();
#pragma unroll 1
  while (!tile.done) {
    const int count = tile.next_groups<T, 8>([](int) {});
    if (count == 0) break;
    const int total = count * steps;
    int next_group = 0, next_step = 0, next = 0;  // what fetch brings next, and where
    const auto fetch = [&](int n) {
      if (n < total) {
        const T* first = tile.row<T>(next_group, Load::first_row());
        const std::int64_t step = shared.tile.list[next_group].slot * (Load::kStep / kSlot);
        const float* live = shared.tile.exponent + next_group * kScoreRows + Load::first_row();
        loader.load(rows + next * kScoreRows * kStride, kStride, next_step * kColumns, [&](int k) {
          return RowAt<T>{first + k * step, live[k * Load::kStep] != minus_infinity()};
        });
        if (!keep_dy) loader.load(dy_rows + next * kTile * kStride, kStride, next_step * kColumns, dy_row);
        if (++next_step == steps) {
          next_step = 0;
          ++next_group;
        }
      }
      next = next + 1 == kStages ? 0 : next + 1;
      copy_commit();
    };
#pragma unroll
    for (int k = 0; k + 1 < kStages; ++k) fetch(k);
    int n = 0, stage = 0;
#pragma unroll 1
    for (int g = 0; g < count; ++g) {
#pragma unroll 1
      for (int s = 0; s < steps; ++s, ++n) {
        copy_wait<kStages - 2>();
        if (shared.tile.list[g].level == 0) {  // it has been taken off the nodes already
          loader.take_off(rows + stage * kScoreRows * kStride, kStride, s * kColumns, origin);
        }
        __syncthreads();
        fetch(n + kStages - 1);
        scores.step(keep_dy ? dy_rows + s * kColumns : dy_rows + stage * kTile * kStride, keep_dy ? dy_stride : kStride,
                    rows + stage * kScoreRows * kStride, kStride);
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      add_group<T>(tile, g, scores, node, sums);
      scores.clear();
    }
    copy_wait<0>();
  }
  finish_tile<T>(in, part, out, tile, shared, sums);
}

}  // namespace

template <typename T>
cudaError_t score_tiles(const Problem& in, Part part, const Backward& out, cudaStream_t stream) {
  const int tiles = part == Part::near ? (in.targets + kTile - 1) / kTile : in.tiles;
  constexpr int kStaged = sizeof(T) * kStages * kScoreRows * score_stride<T>();
  constexpr int kFirst = (sizeof(ScoreShared) + 15) / 16 * 16 + kStaged;
  static_assert(kFirst + kStaged <= kMaxSharedBytes);
  const int stride = kept_stride<T>(in.channels);
  const std::int64_t all = std::int64_t{sizeof(T)} * kTile * stride;
  const bool keep_dy = kFirst + all <= kMaxSharedBytes;
  const int bytes = kFirst + (keep_dy ? static_cast<int>(all) : kStaged);
  return launch<score_kernel<T>>(dim3(tiles * in.batch), kThreads, bytes, stream, in, part, out, keep_dy, stride);
}

template cudaError_t score_tiles<float>(const Problem&, Part, const Backward&, cudaStream_t);

}  // namespace contextpool::cuda
