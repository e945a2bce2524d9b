// The two small dense products everything is made of, one thread block each, sums in float32:
//   Product: C[64 x columns] += A[64 x 32] B[32 x columns]        weights times rows
//   Scores:  S[64 x 64]      += A[64 x k] B[64 x k]^T             dy times rows
// For float32, on the ordinary units (no TF32); half types: half/matrix.cuh.
#pragma once

#include "kernels/cuda/pool1d/problem.cuh"

namespace contextpool::cuda {

// Each thread owns values of 4 rows, row(0 .. 3), at columns column, column + 1; each(f) calls f(k, column, value0,
// value1) with k the number of the row. A row is shared by 16 threads: this one is thread_of_row().
template <typename T>
struct Product;
template <>
struct Product<float> {
  static constexpr int kColumns = TileOf<float>::columns;
  static constexpr int kA = kRows + TileOf<float>::pad, kB = kColumns + TileOf<float>::pad;
  float sum[4][8] = {};  // rows 4 ty .., columns 4 tx .. and 64 + 4 tx ..

  __device__ static int thread_of_row() { return threadIdx.x & 15; }
  __device__ static int row(int k) { return (threadIdx.x >> 4) * 4 + k; }

  // The 32 products of a step are added up by themselves first: thousands of equal ones, each added to the sum of all
  // before, would be rounded the same way each time.
  __device__ void step(const float* a, const float* b) {
    const int ty = threadIdx.x >> 4, tx = threadIdx.x & 15;
    Product part;
#pragma unroll 4
    for (int k = 0; k < kRows; ++k) {
      const float4 b0 = *reinterpret_cast<const float4*>(b + k * kB + tx * 4);
      const float4 b1 = *reinterpret_cast<const float4*>(b + k * kB + 64 + tx * 4);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float w = a[(ty * 4 + r) * kA + k];
        part.sum[r][0] += w * b0.x;
        part.sum[r][1] += w * b0.y;
        part.sum[r][2] += w * b0.z;
        part.sum[r][3] += w * b0.w;
        part.sum[r][4] += w * b1.x;
        part.sum[r][5] += w * b1.y;
        part.sum[r][6] += w * b1.z;
        part.sum[r][7] += w * b1.w;
      }
    }
    add(part);
  }

  __device__ void add(const Product& other) {
#pragma unroll
    for (int k = 0; k < 32; ++k) sum[k / 8][k % 8] += other.sum[k / 8][k % 8];
  }

  template <typename F>
  __device__ void each(F f) {
    const int tx = threadIdx.x & 15;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < 8; c += 2) {
        f(r, (c & 4) * 16 + tx * 4 + (c & 3), sum[r][c], sum[r][c + 1]);
      }
    }
  }
};

// C += A B once more, but a weight of 0 is not multiplied: 0 times an infinity or a NaN that a target does not use must
// stay 0. Slow; only for tiles in which a value is not finite.
template <typename T>
__device__ inline void step_skipping_zeros(Product<T>& c, const T* a, const T* b) {
  Product<T> part;  // as in step(): the same bits
#pragma unroll 1
  for (int k = 0; k < kRows; ++k) {
    part.each([&](int r, int column, float& v0, float& v1) {
      const float w = to_float(a[Product<T>::row(r) * Product<T>::kA + k]);
      if (w == 0) return;  // a NaN weight counts
      v0 += w * to_float(b[k * Product<T>::kB + column]);
      v1 += w * to_float(b[k * Product<T>::kB + column + 1]);
    });
  }
  c.add(part);
}

template <typename T>
__device__ inline bool all_finite(Product<T>& c) {
  bool finite = true;
  c.each([&](int, int, float& v0, float& v1) { finite = finite && isfinite(v0) && isfinite(v1); });
  return finite;
}

// S[64 x 64]: columns of A and B are TileOf<T>::score_columns channels; strides are the caller's. A thread's values:
// targets target(0 .. 3), slots slot(0 .. kSlots - 1) of the 64 rows, rows row(0 .. kPer - 1) of a slot. A target is
// shared by threads of kWarpShare warps, of which this is warp_of_target(), and kLaneShare lanes.
template <typename T>
struct Scores;
template <>
struct Scores<float> {
  float sum[4][4];  // rows ty + 16 r, columns tx + 16 c

  __device__ void clear() {
#pragma unroll
    for (int k = 0; k < 16; ++k) sum[k / 4][k % 4] = 0;
  }
  __device__ void step(const float* a, int a_stride, const float* b, int b_stride) {
    const int ty = threadIdx.x >> 4, tx = threadIdx.x & 15;
#pragma unroll 4
    for (int k = 0; k < TileOf<float>::score_columns; ++k) {
      float va[4], vb[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) va[r] = a[(ty + 16 * r) * a_stride + k];
#pragma unroll
      for (int c = 0; c < 4; ++c) vb[c] = b[(tx + 16 * c) * b_stride + k];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[r][c] += va[r] * vb[c];
      }
    }
  }
  static constexpr int kSlots = 4, kPer = 1, kWarpShare = 1, kLaneShare = 16;
  __device__ static int target(int k) { return (threadIdx.x >> 4) + 16 * k; }
  __device__ static int slot(int n) { return (threadIdx.x >> 3 & 1) + 2 * n; }
  __device__ static int row(int) { return threadIdx.x & 7; }
  __device__ static int warp_of_target() { return 0; }
  __device__ float value(int k, int n, int) const { return sum[k][n]; }
};

}  // namespace contextpool::cuda
