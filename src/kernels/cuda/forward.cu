// y_i = sum_r a_ir X_r / sum_r a_ir m_r for 64 targets and some channels at a time: weights made on the fly, rounded to
// the storage type (the denominator sums the rounded ones), times rows on the matrix units.
#include "kernels/cuda/forward.h"

#include "kernels/cuda/product.cuh"

namespace contextpool::cuda {
namespace {

template <typename T>
struct ForwardShared {
  T a[2][kTile * Product<T>::kA];
  T b[kStages][kRows * Product<T>::kB];  // at the end, the first two as one: the 64 rows of y
  float partial[kRows / kSlot][kTile];
  TileShared tile;
};

template <typename T, bool kCareful>
__device__ float accumulate(Tile& tile, ForwardShared<T>& shared, int column, Product<T>& product) {
  const Target target = tile.shared.targets[threadIdx.x & 63];
  const int slot = threadIdx.x >> 6;
  const Problem& in = tile.in;
  float sum = 0;
  tile.each_group<0>([&](Source<0> source, int count) {
    const auto fetch = [&](int n) {
      if (n < count) {
        load_rows<T, kRows, Product<T>::kColumns>(shared.b[n % kStages], Product<T>::kB, column, in.channels,
                                                  in.aligned, in.x, [&](int r) { return tile.row<T>(source, n, r); });
      }
      copy_commit();
    };
    const auto weigh = [&](int n) {
      int low, high;
      float from;
      tile.view(target, source, tile.shared.list[n], slot, low, high, from);
      __align__(16) float exponent[kSlot];
      __align__(16) float mass[kSlot];
      __align__(16) T weight[kSlot];
#pragma unroll
      for (int k = 0; k < kSlot / 4; ++k) {
        reinterpret_cast<float4*>(exponent)[k] =
            *reinterpret_cast<const float4*>(tile.shared.exponent + n * kRows + slot * kSlot + 4 * k);
        reinterpret_cast<float4*>(mass)[k] =
            *reinterpret_cast<const float4*>(tile.shared.mass + n * kRows + slot * kSlot + 4 * k);
      }
#pragma unroll
      for (int r = 0; r < kSlot; ++r) {
        const float d = target.scale * (from - row_offset(source.level, r));
        const float w = r >= low && r < high ? power_of_two(exponent[r] - target.exponent - d * d) : 0.f;
        weight[r] = from_float<T>(w);
        const float rounded = to_float(weight[r]);
        sum += rounded == 0 ? 0 : rounded * mass[r];
      }
      T* a = shared.a[n & 1] + (threadIdx.x & 63) * Product<T>::kA + slot * kSlot;
#pragma unroll
      for (int k = 0; k < static_cast<int>(kSlot * sizeof(T) / 16); ++k) {
        reinterpret_cast<uint4*>(a)[k] = reinterpret_cast<const uint4*>(weight)[k];
      }
    };
    fetch(0);
    fetch(1);
    weigh(0);
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
      copy_wait<kStages - 2>();
      __syncthreads();
      fetch(n + kStages - 1);
      if (n + 1 < count) weigh(n + 1);
      if constexpr (kCareful) {
        careful_step(product, shared.a[n & 1], shared.b[n % kStages]);
      } else {
        product.step(shared.a[n & 1], shared.b[n % kStages]);
      }
    }
    copy_wait<0>();
  });
  return sum;
}

// Not inlined, and given copies: it must not cost the ordinary path registers.
template <typename T>
__device__ __noinline__ float accumulate_carefully(Tile tile, ForwardShared<T>& shared, int column, Product<T>* product) {
  *product = Product<T>();
  return accumulate<T, true>(tile, shared, column, *product);
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) forward_kernel(const __grid_constant__ Problem in, Part part, T* y, float* near_mass) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<T>*>(memory);
  Tile tile{in, shared.tile, static_cast<int>(blockIdx.x) % in.batch, static_cast<int>(blockIdx.x) / in.batch, 0};
  if (!tile.load(part)) return;
  const int column = blockIdx.y * Product<T>::kColumns;
  Product<T> product;
  float sum = accumulate<T, false>(tile, shared, column, product);
  if (__syncthreads_or(!all_finite(product))) {
    Product<T> again;
    sum = accumulate_carefully<T>(tile, shared, column, &again);
    product = again;
  }
  shared.partial[threadIdx.x >> 6][threadIdx.x & 63] = sum;

  // Whole rows of y through shared memory.
  constexpr int kStride = Product<T>::kB, kPiece = 16 / sizeof(T), kPieces = Product<T>::kColumns / kPiece;
  T* rows = shared.b[0];
  T* out = y + static_cast<std::int64_t>(tile.batch) * in.targets * in.channels;
  const auto each_piece = [&](auto f) {
    for (int p = threadIdx.x; p < kTile * kPieces; p += kThreads) {
      const int m = shared.tile.targets[p / kPieces].index, d = column + p % kPieces * kPiece;
      if (m < 0 || d >= in.channels) continue;
      f(rows + p / kPieces * kStride + p % kPieces * kPiece, out + static_cast<std::int64_t>(m) * in.channels + d, d);
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
  product.each([&](int row, int c, float& v0, float& v1) {
    float total = 0;
#pragma unroll
    for (int k = 0; k < kRows / kSlot; ++k) total += shared.partial[k][row];
    T* to = rows + row * kStride + c;
    const Target& t = shared.tile.targets[row];
    if (part == Part::far && t.level != 0 && t.index >= 0) {
      const float near = near_mass[static_cast<std::int64_t>(tile.batch) * in.targets + t.index];
      if (near != 0) {
        total += near;
        v0 += near * to_float(to[0]);
        v1 += near * to_float(to[1]);
      }
    }
    const float scale = total == 0 ? 0.f : 1.f / total;
    to[0] = from_float<T>(total == 0 ? 0.f : v0 * scale);
    to[1] = from_float<T>(total == 0 ? 0.f : v1 * scale);
  });
  if (part == Part::near && blockIdx.y == 0 && threadIdx.x < kTile && shared.tile.targets[threadIdx.x].index >= 0) {
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

}  // namespace

template <typename T>
cudaError_t forward_tiles(const Problem& in, Part part, T* y, float* near_mass, cudaStream_t stream) {
  const int tiles = part == Part::near ? (in.targets + kTile - 1) / kTile : in.tiles;
  const dim3 grid(tiles * in.batch, (in.channels + Product<T>::kColumns - 1) / Product<T>::kColumns);
  constexpr int kBytes = sizeof(ForwardShared<T>);
  const auto error = cudaFuncSetAttribute(forward_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  forward_kernel<T><<<grid, kThreads, kBytes, stream>>>(in, part, y, near_mass);
  return cudaGetLastError();
}

template cudaError_t forward_tiles(const Problem&, Part, float*, float*, cudaStream_t);
template cudaError_t forward_tiles(const Problem&, Part, __nv_bfloat16*, float*, cudaStream_t);
template cudaError_t forward_tiles(const Problem&, Part, __half*, float*, cudaStream_t);

}  // namespace contextpool::cuda
