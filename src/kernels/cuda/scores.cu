// c_i and dsigma_i: 64 targets at a time, scores S = dy X^T on the matrix units, then sums of scalars.
#include "kernels/cuda/backward.h"
#include "kernels/cuda/product.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kSums = 4;  // Z, sum a s, sum a (ut)^2 s, sum a (ut)^2 m

struct ScoreShared {
  float partial[kSums][4][kTile];
  TileShared tile;
};

template <typename T>
__host__ __device__ constexpr int score_stride() {
  return TileOf<T>::score_columns + TileOf<T>::pad;
}
template <typename T>
int resident_stride(int channels) {
  return (channels + TileOf<T>::score_columns - 1) / TileOf<T>::score_columns * TileOf<T>::score_columns +
         TileOf<T>::pad;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    score_kernel(const __grid_constant__ Problem in, Part part, const __grid_constant__ Backward out, int resident,
                 int rows_stride) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ScoreShared*>(memory);
  constexpr int kWide = TileOf<T>::score_columns, kStride = score_stride<T>();
  T* rows = reinterpret_cast<T*>(memory + (sizeof(ScoreShared) + 15) / 16 * 16);  // stages of 64 source rows
  T* left = rows + kScoreStages * kScoreRows * kStride;                           // dy: all of it, or as many stages
  Tile tile{in, shared.tile, static_cast<int>(blockIdx.x) % in.batch, static_cast<int>(blockIdx.x) / in.batch, 0};
  if (!tile.load(part)) return;
  const int steps = (in.channels + kWide - 1) / kWide;
  using Load = Loader<T, kTile, kWide>;
  static_assert(kTile == kScoreRows);
  const Load loader(in);
  const T* dy = static_cast<const T*>(out.dy) + static_cast<std::int64_t>(tile.batch) * in.targets * in.channels;
  const auto dy_row = [&](int k) {
    const int m = shared.tile.targets[Load::first_row() + k * Load::kStep].index;
    return RowAt<T>{dy + static_cast<std::int64_t>(m) * loader.channels, m >= 0};
  };
  if (resident) {
    for (int s = 0; s < steps; ++s) {
      loader.load(left + s * kWide, rows_stride, s * kWide, dy_row);
    }
  }
  float cheb[Scores<T>::kPer];
#pragma unroll
  for (int e = 0; e < Scores<T>::kPer; ++e) cheb[e] = kCheb[Scores<T>::row(e)];
  float sums[kSums][4] = {};
  Scores<T> scores;
  scores.clear();
  tile.each_group<1>([&](int count) {
    const int total = count * steps;
    int next_group = 0, next_step = 0, next = 0;  // what fetch brings next, and where
    const auto fetch = [&](int n) {
      if (n < total) {
        const T* first = tile.row<T>(next_group, Load::first_row());
        const std::int64_t step = shared.tile.list[next_group].slot * (Load::kStep / kSlot);
        const float* live = shared.tile.exponent + next_group * kScoreRows + Load::first_row();
        loader.load(rows + next * kScoreRows * kStride, kStride, next_step * kWide, [&](int k) {
          return RowAt<T>{first + k * step, live[k * Load::kStep] != minus_infinity()};
        });
        if (!resident) loader.load(left + next * kTile * kStride, kStride, next_step * kWide, dy_row);
        if (++next_step == steps) {
          next_step = 0;
          ++next_group;
        }
      }
      next = next + 1 == kScoreStages ? 0 : next + 1;
      copy_commit();
    };
#pragma unroll
    for (int k = 0; k + 1 < kScoreStages; ++k) fetch(k);
    int n = 0, stage = 0;
#pragma unroll 1
    for (int g = 0; g < count; ++g) {
#pragma unroll 1
      for (int s = 0; s < steps; ++s, ++n) {
        copy_wait<kScoreStages - 2>();
        __syncthreads();
        fetch(n + kScoreStages - 1);
        scores.step(resident ? left + s * kWide : left + stage * kTile * kStride, resident ? rows_stride : kStride,
                    rows + stage * kScoreRows * kStride, kStride);
        stage = stage + 1 == kScoreStages ? 0 : stage + 1;
      }
      const Source<1> source = tile.source<1>(g);
      const float half = 0.5f * static_cast<float>(1 << source.level);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const Target& target = shared.tile.targets[Scores<T>::target(k)];
#pragma unroll
        for (int m = 0; m < Scores<T>::kSlots; ++m) {
          int low, high;
          float from;
          tile.view(target, source, shared.tile.list[g].group, Scores<T>::slot(m), low, high, from);
#pragma unroll
          for (int e = 0; e < Scores<T>::kPer; ++e) {
            const int r = Scores<T>::row(e), row = g * kScoreRows + Scores<T>::slot(m) * kSlot + r;
            if (r < low || r >= high) continue;
            const float offset = source.level == 0 ? static_cast<float>(r) : half - 0.5f + half * cheb[e];
            const float d = target.scale * (from - offset), d2 = d * d, mass = shared.tile.mass[row];
            const float a = power_of_two(shared.tile.exponent[row] - target.exponent - d2);
            if (a == 0) continue;
            const float score = scores.value(k, m, e);
            sums[0][k] += a * mass;
            sums[1][k] += a * score;
            sums[2][k] += a * d2 * score;
            sums[3][k] += a * d2 * mass;
          }
        }
      }
      scores.clear();
    }
    copy_wait<0>();
  });
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int q = 0; q < kSums; ++q) {
      for (int lanes = Scores<T>::kLaneShare / 2; lanes > 0; lanes /= 2) {
        sums[q][k] += __shfl_xor_sync(0xffffffffu, sums[q][k], lanes);
      }
      shared.partial[q][Scores<T>::share()][Scores<T>::target(k)] = sums[q][k];
    }
  }
  __syncthreads();
  if (threadIdx.x >= kTile) return;
  const Target target = shared.tile.targets[threadIdx.x];
  float total[kSums];
  for (int q = 0; q < kSums; ++q) {
    total[q] = 0;
    for (int s = 0; s < Scores<T>::kShare; ++s) total[q] += shared.partial[q][s][threadIdx.x];
  }
  const std::int64_t index = static_cast<std::int64_t>(tile.batch) * in.targets + target.index;
  if (part == Part::near) {
    if (target.index >= 0) out.near_sums[index] = make_float4(total[0], total[1], total[2], total[3]);
    return;
  }
  if (part == Part::far && target.level != 0 && target.index >= 0) {
    const float4 near = out.near_sums[index];
    total[0] += near.x;
    total[1] += near.y;
    total[2] += near.z;
    total[3] += near.w;
  }
  const float inverse = total[0] == 0 ? 0.f : 1.f / total[0], c = total[1] * inverse;
  const Weighted weighted{target.scale, target.exponent,         target.begin, target.end, target.position,
                          target.index, total[0] == 0 ? 0.f : c, inverse};
  out.tiled[(static_cast<std::int64_t>(tile.batch) * in.tiles + tile.tile) * kTile + threadIdx.x] = weighted;
  if (target.index >= 0) {
    const bool moves = target.scale != 0 && total[0] != 0;
    out.dsigma[index] = moves ? 2 * kLn2 / target.sigma * (total[2] - c * total[3]) * inverse : total[0] * 0;
    if (out.natural != nullptr) {
      out.natural[index] = weighted;
      if (target.level == 0) out.natural[index].index = -1;
    }
  }
  const bool some = target.begin < target.end, here = target.index >= 0;
  const int begin = __reduce_min_sync(0xffffffffu, some ? target.begin : 0x7fffffff);
  const int end = __reduce_max_sync(0xffffffffu, some ? target.end : 0);
  const int first = __reduce_min_sync(0xffffffffu, here ? target.position : 0x7fffffff);
  const int last = __reduce_max_sync(0xffffffffu, here ? target.position : -1);
  if (threadIdx.x % 32 == 0) {
    out.bounds[(static_cast<std::int64_t>(tile.batch) * in.tiles + tile.tile) * 2 + threadIdx.x / 32] =
        make_int4(begin, end, first, last);
  }
}

}  // namespace

template <typename T>
cudaError_t score_tiles(const Problem& in, Part part, const Backward& out, cudaStream_t stream) {
  const int tiles = part == Part::near ? (in.targets + kTile - 1) / kTile : in.tiles;
  const bool resident = in.channels * static_cast<int>(sizeof(T)) <= kResident * 2;
  const int stride = resident_stride<T>(in.channels);
  const int bytes = (sizeof(ScoreShared) + 15) / 16 * 16 + sizeof(T) * kScoreStages * kScoreRows * score_stride<T>() +
                    sizeof(T) * (resident ? kTile * stride : kScoreStages * kTile * score_stride<T>());
  const auto error = cudaFuncSetAttribute(score_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  score_kernel<T><<<tiles * in.batch, kThreads, bytes, stream>>>(in, part, out, resident, stride);
  return cudaGetLastError();
}

template cudaError_t score_tiles<float>(const Problem&, Part, const Backward&, cudaStream_t);
template cudaError_t score_tiles<__nv_bfloat16>(const Problem&, Part, const Backward&, cudaStream_t);
template cudaError_t score_tiles<__half>(const Problem&, Part, const Backward&, cudaStream_t);

}  // namespace contextpool::cuda
