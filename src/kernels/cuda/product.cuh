// The two small dense products everything is made of, one thread block each, sums in float32:
//   Product: C[64 x columns] += A[64 x 32] B[32 x columns]        weights times rows
//   Scores:  S[64 x 64]      += A[64 x k] B[64 x k]^T             dy times rows
// bfloat16 and float16 on the matrix units; float32 on the ordinary ones (no TF32).
#pragma once

#include "kernels/cuda/common.cuh"

namespace contextpool::cuda {

__device__ inline void load_matrix(unsigned (&r)[4], const void* p) {
  const auto s = static_cast<unsigned>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(s));
}
__device__ inline void load_matrix_transposed(unsigned (&r)[4], const void* p) {
  const auto s = static_cast<unsigned>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(s));
}
template <typename T>
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
template <>
__device__ inline void multiply<__nv_bfloat16>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply<__half>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Each thread owns values of 4 rows, row(0 .. 3), at columns column, column + 1; each(f) calls f(k, column, value0,
// value1) with k the number of the row. A row is shared by 16 threads, told apart by share().
template <typename T>
struct Product {
  static constexpr int kColumns = TileOf<T>::columns;
  static constexpr int kA = kRows + TileOf<T>::pad, kB = kColumns + TileOf<T>::pad;  // strides in shared memory
  float sum[2][kColumns / 32][4] = {};

  __device__ static int lane() { return threadIdx.x & 31; }
  __device__ static int row0() { return (threadIdx.x >> 5 & 1) * 32; }
  __device__ static int column0() { return (threadIdx.x >> 6) * (kColumns / 4); }
  __device__ static int share() { return (threadIdx.x >> 6) * 4 + (threadIdx.x & 3); }
  __device__ static int row(int k) { return row0() + k * 8 + (lane() >> 2); }

  __device__ void step(const T* a, const T* b) {
#pragma unroll
    for (int k = 0; k < kRows; k += 16) {
      unsigned ra[2][4];
      const int row = lane() & 15, half = (lane() >> 4) * 8;
#pragma unroll
      for (int m = 0; m < 2; ++m) load_matrix(ra[m], a + (row0() + m * 16 + row) * kA + k + half);
#pragma unroll
      for (int n = 0; n < kColumns / 64; ++n) {
        unsigned rb[4];
        load_matrix_transposed(rb, b + (k + row) * kB + column0() + n * 16 + half);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply<T>(sum[m][2 * n], ra[m], rb[0], rb[1]);
          multiply<T>(sum[m][2 * n + 1], ra[m], rb[2], rb[3]);
        }
      }
    }
  }

  template <typename F>
  __device__ void each(F f) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns / 32; ++n) {
        const int column = column0() + n * 8 + (lane() & 3) * 2;
        f(2 * m, column, sum[m][n][0], sum[m][n][1]);
        f(2 * m + 1, column, sum[m][n][2], sum[m][n][3]);
      }
    }
  }
};

template <>
struct Product<float> {
  static constexpr int kColumns = TileOf<float>::columns;
  static constexpr int kA = kRows + TileOf<float>::pad, kB = kColumns + TileOf<float>::pad;
  float sum[4][8] = {};  // rows 4 ty .., columns 4 tx .. and 64 + 4 tx ..

  __device__ static int share() { return threadIdx.x & 15; }
  __device__ static int row(int k) { return (threadIdx.x >> 4) * 4 + k; }

  __device__ void step(const float* a, const float* b) {
    const int ty = threadIdx.x >> 4, tx = threadIdx.x & 15;
#pragma unroll 4
    for (int k = 0; k < kRows; ++k) {
      const float4 b0 = *reinterpret_cast<const float4*>(b + k * kB + tx * 4);
      const float4 b1 = *reinterpret_cast<const float4*>(b + k * kB + 64 + tx * 4);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float w = a[(ty * 4 + r) * kA + k];
        sum[r][0] += w * b0.x;
        sum[r][1] += w * b0.y;
        sum[r][2] += w * b0.z;
        sum[r][3] += w * b0.w;
        sum[r][4] += w * b1.x;
        sum[r][5] += w * b1.y;
        sum[r][6] += w * b1.z;
        sum[r][7] += w * b1.w;
      }
    }
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

// C += A B once more, but a weight of 0 meets no value: 0 times an infinity or a NaN that a target does not use must
// stay 0. Slow; only for tiles in which a value is not finite.
template <typename T>
__device__ inline void careful_step(Product<T>& c, const T* a, const T* b) {
#pragma unroll 1
  for (int k = 0; k < kRows; ++k) {
    c.each([&](int r, int column, float& v0, float& v1) {
      const float w = to_float(a[Product<T>::row(r) * Product<T>::kA + k]);
      if (w == 0) return;  // a NaN weight goes on
      v0 += w * to_float(b[k * Product<T>::kB + column]);
      v1 += w * to_float(b[k * Product<T>::kB + column + 1]);
    });
  }
}

template <typename T>
__device__ inline bool all_finite(Product<T>& c) {
  bool finite = true;
  c.each([&](int, int, float& v0, float& v1) { finite = finite && isfinite(v0) && isfinite(v1); });
  return finite;
}

// S[64 x 64]: columns of A and B are TileOf<T>::score_columns channels; strides are the caller's.
template <typename T>
struct Scores {
  float sum[2][2][4];

  __device__ void clear() {
#pragma unroll
    for (int k = 0; k < 16; ++k) sum[k / 8][k / 4 % 2][k % 4] = 0;
  }
  __device__ void step(const T* a, int a_stride, const T* b, int b_stride) {
    const int lane = threadIdx.x & 31, row0 = (threadIdx.x >> 5 & 1) * 32, column0 = (threadIdx.x >> 6) * 16;
#pragma unroll
    for (int k = 0; k < TileOf<T>::score_columns; k += 16) {
      unsigned ra[2][4], rb[4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        load_matrix(ra[m], a + (row0 + m * 16 + (lane & 15)) * a_stride + k + (lane >> 4) * 8);
      }
      load_matrix(rb, b + (column0 + (lane & 7) + (lane >> 4) * 8) * b_stride + k + (lane >> 3 & 1) * 8);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        multiply<T>(sum[m][0], ra[m], rb[0], rb[1]);
        multiply<T>(sum[m][1], ra[m], rb[2], rb[3]);
      }
    }
  }
  // This thread's values: targets target(0 .. 3), slots slot(0 .. kSlots - 1) of the 64 rows, rows row(0 .. kPer - 1)
  // of a slot. A target is shared by threads of kShare warps, told apart by share(), and 4 lanes.
  static constexpr int kSlots = 2, kPer = 2, kShare = 4, kLaneShare = 4;
  __device__ static int target(int k) { return (threadIdx.x >> 5 & 1) * 32 + k * 8 + (threadIdx.x >> 2 & 7); }
  __device__ static int slot(int n) { return (threadIdx.x >> 6) * 2 + n; }
  __device__ static int row(int e) { return (threadIdx.x & 3) * 2 + e; }
  __device__ static int share() { return threadIdx.x >> 6; }
  __device__ float value(int k, int n, int e) const { return sum[k >> 1][n][(k & 1) * 2 + e]; }
};

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
  static constexpr int kSlots = 4, kPer = 1, kShare = 1, kLaneShare = 16;
  __device__ static int target(int k) { return (threadIdx.x >> 4) + 16 * k; }
  __device__ static int slot(int n) { return (threadIdx.x >> 3 & 1) + 2 * n; }
  __device__ static int row(int) { return threadIdx.x & 7; }
  __device__ static int share() { return 0; }
  __device__ float value(int k, int n, int) const { return sum[k][n]; }
};

}  // namespace contextpool::cuda
