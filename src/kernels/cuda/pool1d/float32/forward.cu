// y_i = sum_r a_ir X_r / sum_r a_ir m_r in float32, for 64 targets and some channels at a time: weights made on the
// fly, times rows. (half/forward.cu has the half types, on the matrix units.)
#include "kernels/cuda/pool1d/forward.h"

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/float32/product.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kStages = kPlainPipe.stages;

template <typename T>
struct ForwardShared {
  T a[2][kTile * Product<T>::kA];
  T b[kStages][kRows * Product<T>::kB];  // at the end, the first two as one: the 64 rows of y
  float partial[kRows / kSlot][kTile];
  TileShared tile;
};

template <typename T, bool kSkipZeros>
__device__ float accumulate(Tile<kThreads>& tile, ForwardShared<T>& shared, int column, Product<T>& product) {
  const Target target = tile.shared.targets[threadIdx.x & 63];
  const int slot = threadIdx.x >> 6;
  const Problem& in = tile.in;
  float sum = 0;
  tile.rewind<4>();
#pragma unroll 1
  while (!tile.done) {
    const int count = tile.next_groups<T, 4>([](int) {});
    if (count == 0) break;
    using Load = Loader<T, kRows, Product<T>::kColumns>;
    const Load loader(in);
    const auto fetch = [&](int n, int stage) {
      if (n < count) {
        const T* first = tile.row<T>(n, Load::first_row());
        const std::int64_t step = tile.shared.list[n].slot * (Load::kStep / kSlot);
        const float* live = tile.shared.exponent + n * kRows + Load::first_row();
        loader.load(shared.b[stage], Product<T>::kB, column, [&](int k) {
          return RowAt<T>{first + k * step, live[k * Load::kStep] != minus_infinity()};
        });
      }
      copy_commit();
    };
    const auto weigh = [&](int n) {
      const Source<4> source = tile.source<4>(n);
      const float half = 0.5f * static_cast<float>(1 << source.level);
      int low, high;
      float from;
      tile.view(target, source, tile.shared.list[n].group, slot, low, high, from);
      const float* exponent = tile.shared.exponent + n * kRows + slot * kSlot;
      const float* mass = tile.shared.mass + n * kRows + slot * kSlot;
      auto* a = reinterpret_cast<Pair<T>*>(shared.a[n & 1] + (threadIdx.x & 63) * Product<T>::kA + slot * kSlot);
      __align__(16) Pair<T> weight[kSlot / 2];
      const bool tokens = source.level == 0, alone = target.scale == 0;
      const float one = 1.f + 0.f * target.exponent;  // the weight of the only source, to the bit; or NaN
      float part = 0;
      if (!tokens) from += 0.5f - half;
#pragma unroll
      for (int r = 0; r < kSlot; r += 2) {
        const float2 e = *reinterpret_cast<const float2*>(exponent + r);
        const float2 m = *reinterpret_cast<const float2*>(mass + r);
        const float t0 = from - (tokens ? static_cast<float>(r) : half * kChebyshev[r]);
        const float t1 = from - (tokens ? static_cast<float>(r + 1) : half * kChebyshev[r + 1]);
        const float d0 = target.scale * t0, d1 = target.scale * t1;
        const float w0 = alone ? one : power_of_two(fmaf(-d0, d0, e.x - target.exponent + (tokens ? m.x : 0.f)));
        const float w1 = alone ? one : power_of_two(fmaf(-d1, d1, e.y - target.exponent + (tokens ? m.y : 0.f)));
        weight[r / 2] = Pair<T>::of(r >= low && r < high ? w0 : 0.f, r + 1 >= low && r + 1 < high ? w1 : 0.f);
        part += weight[r / 2].first() * (tokens ? 1.f : m.x) + weight[r / 2].second() * (tokens ? 1.f : m.y);
      }
      sum += part;
#pragma unroll
      for (int k = 0; k < static_cast<int>(kSlot * sizeof(T) / 16); ++k) {
        reinterpret_cast<uint4*>(a)[k] = reinterpret_cast<const uint4*>(weight)[k];
      }
    };
    int stage = 0, next = 2;
    fetch(0, 0);
    fetch(1, 1);
    weigh(0);
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
      copy_wait<kStages - 2>();
      __syncthreads();
      fetch(n + kStages - 1, next);
      if (n + 1 < count) weigh(n + 1);
      if constexpr (kSkipZeros) {
        step_skipping_zeros(product, shared.a[n & 1], shared.b[stage]);
      } else {
        product.step(shared.a[n & 1], shared.b[stage]);
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
    copy_wait<0>();
  }
  return sum;
}

// Not inlined, and given copies: it must not cost the ordinary path registers.
template <typename T>
__device__ __noinline__ float accumulate_skipping_zeros(Tile<kThreads> tile, ForwardShared<T>& shared, int column,
                                                        Product<T>* product) {
  *product = Product<T>();
  return accumulate<T, true>(tile, shared, column, *product);
}

// y of the tile's targets, channels column .. column + kColumns - 1.
template <typename T>
__device__ void write_columns(Tile<kThreads>& tile, ForwardShared<T>& shared, Part part, int column, T* y,
                              float* near_mass) {
  const Problem& in = tile.in;
  Product<T> product;
  float sum = accumulate<T, false>(tile, shared, column, product);
  if (__syncthreads_or(!all_finite(product))) {
    Product<T> redone;
    sum = accumulate_skipping_zeros<T>(tile, shared, column, &redone);
    product = redone;
  }
  shared.partial[threadIdx.x >> 6][threadIdx.x & 63] = sum;

  // Whole rows of y through shared memory.
  constexpr int kStride = Product<T>::kB, kPiece = 16 / sizeof(T), kPieces = Product<T>::kColumns / kPiece;
  T* rows = shared.b[0];
  T* out = y + in.result_start(tile.batch, in.targets);
  const auto each_piece = [&](auto f) {
    for (int p = threadIdx.x; p < kTile * kPieces; p += kThreads) {
      const int m = shared.tile.targets[p / kPieces].index, d = column + p % kPieces * kPiece;
      if (m < 0 || d >= in.channels) continue;
      f(rows + p / kPieces * kStride + p % kPieces * kPiece, out + in.result_at(m) + d, d);
    }
  };
  __syncthreads();
  if (part == Part::far && shared.tile.targets[0].level != 0) {
    each_piece([&](T* row, const T* global, int d) {
      if (in.aligned) {
        *reinterpret_cast<uint4*>(row) = *reinterpret_cast<const uint4*>(global);
      } else {
        for (int k = 0; k < kPiece && d + k < in.channels; ++k) row[k] = global[k];
      }
    });
    __syncthreads();
  }
  float scale[4], near[4], off[4];  // off: the weight of what was made of x - origin
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int row = Product<T>::row(k);
    const Target& t = shared.tile.targets[row];
    float total = 0;
#pragma unroll
    for (int s = 0; s < kRows / kSlot; ++s) total += shared.partial[s][row];
    off[k] = tile.level == 0 ? 0.f : total;
    near[k] = 0;
    if (part == Part::far && t.level != 0 && t.index >= 0) {
      near[k] = near_mass[static_cast<std::int64_t>(tile.batch) * in.targets + t.index];
      total += near[k];
    }
    scale[k] = total == 0 ? 0.f : 1.f / total;
  }
  const float* origin = in.origin_of(tile.batch) + column;
  product.each([&](int k, int c, float& v0, float& v1) {
    auto* to = reinterpret_cast<Pair<T>*>(rows + Product<T>::row(k) * kStride + c);
    if (off[k] != 0 && column + c < in.channels) {
      const float2 o = *reinterpret_cast<const float2*>(origin + c);
      v0 += off[k] * o.x;
      v1 += off[k] * o.y;
    }
    if (near[k] != 0) {
      v0 += near[k] * to->first();
      v1 += near[k] * to->second();
    }
    *to = Pair<T>::of(v0 * scale[k], v1 * scale[k]);
  });
  if (part == Part::near && column == 0 && threadIdx.x < kTile && shared.tile.targets[threadIdx.x].index >= 0) {
    float total = 0;
    for (int k = 0; k < kRows / kSlot; ++k) total += shared.partial[k][threadIdx.x];
    near_mass[static_cast<std::int64_t>(tile.batch) * in.targets + shared.tile.targets[threadIdx.x].index] = total;
  }
  __syncthreads();
  each_piece([&](const T* row, T* global, int d) {
    if (in.aligned) {
      *reinterpret_cast<uint4*>(global) = *reinterpret_cast<const uint4*>(row);
    } else {
      for (int k = 0; k < kPiece && d + k < in.channels; ++k) global[k] = row[k];
    }
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kPlainPipe.blocks)
    forward_kernel(const __grid_constant__ Problem in, Part part, T* y, float* near_mass) {
  after_previous();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<T>*>(memory);
  Tile<kThreads> tile{in, shared.tile, static_cast<int>(blockIdx.x) % in.batch, static_cast<int>(blockIdx.x) / in.batch,
                      0};
  if (!tile.load(part)) return;
  const int step = gridDim.y * Product<T>::kColumns;
#pragma unroll 1
  for (int column = blockIdx.y * Product<T>::kColumns; column < in.channels; column += step) {
    write_columns<T>(tile, shared, part, column, y, near_mass);
    __syncthreads();
  }
}

}  // namespace

template <typename T>
cudaError_t forward_tiles(const Problem& in, Part part, T* y, float* near_mass, cudaStream_t stream) {
  const int tiles = part == Part::near ? (in.targets + kTile - 1) / kTile : in.tiles;
  // Where there are tiles enough, a thread block does all channels of one: its sources are looked up once.
  const bool many = tiles * in.batch >= kManyTiles;
  const dim3 grid(tiles * in.batch, many ? 1 : columns_of<T>(in.channels));
  constexpr int kBytes = shared_bytes<ForwardShared<T>>();
  return launch<forward_kernel<T>>(grid, kThreads, kBytes, stream, in, part, y, near_mass);
}

template cudaError_t forward_tiles(const Problem&, Part, float*, float*, cudaStream_t);

}  // namespace contextpool::cuda
