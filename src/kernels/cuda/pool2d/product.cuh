// The two products of pool2d, of a warp with 16 rows of its own (its patch) and 16 rows of another patch, which lie in
// shared memory:
//   add      own[r] += sum_k w_rk other[k]         (features of a target from pixels, gradients of a pixel from
//   targets) scores   q_rk = own[r] . other[k]
// Numbers that belong to a pair (r, k) are spread over the warp alike everywhere: lane 4 g + q has rows g and g + 8
// and, of the other patch, cells 2 q, 2 q + 1, 2 q + 8 and 2 q + 9.
//
// Half types use the matrix units, whose operands have that order; float and double multiply one by one (no TF32).
#pragma once

#include "kernels/cuda/pool2d/map.cuh"

namespace contextpool::cuda::maps {

template <typename T>
struct Pairs {
  T at[2][4];
};
__device__ inline int own_row(int r) { return static_cast<int>(threadIdx.x) % 32 / 4 + 8 * r; }
__device__ inline int other_cell(int k) { return static_cast<int>(threadIdx.x) % 4 * 2 + k % 2 + k / 2 * 8; }

// A value of each row, held by the lanes of that row (first: rows 0 - 7): the value of any one.
template <typename T>
__device__ T of_row(T first, T second, int row) {
  const T a = __shfl_sync(kAll, first, row % 8 * 4), b = __shfl_sync(kAll, second, row % 8 * 4);
  return row < 8 ? a : b;
}
// Adds up what the lanes of a row have.
template <typename T>
__device__ T sum_of_row(T v) {
  v += __shfl_xor_sync(kAll, v, 1);
  return v + __shfl_xor_sync(kAll, v, 2);
}

// Elements between rows in shared memory: 16 bytes more than their channels, so that eight rows meet all banks.
template <typename S, int kChannels>
constexpr int kPitch = kChannels + 16 / static_cast<int>(sizeof(S));

// Rows of channels in device memory, from the thread block's first channel on.
template <typename S>
struct Features {
  const S* first;
  std::int64_t stride;  // channels of the map
  int channels;         // of them, from the first on
  bool aligned;
  __device__ const S* row(int cell) const { return first + cell * stride; }
};

// --- matrix units ----------------------------------------------------------------------------------------------------

__device__ inline void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four 8 x 8 matrices; lane 8 k + r names row r of the k-th.
template <bool kTransposed>
__device__ void load_matrices(unsigned (&v)[4], const void* row) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at));
  }
}

template <typename S, int kChannels>
struct Product {
  using T = float;
  struct Shared {};  // nothing: all is in registers

  // --- own[r] += w other ---
  float sums[kChannels / 8][4] = {};

  // Weights are taken as the sum of two numbers of the storage type, so that they are as good as float: a result of few
  // sources would otherwise be off by more than its own rounding.
  __device__ void add(Shared& /*shared*/, const Pairs<T>& w, const S* other, int /*band*/) {
    unsigned high[4], low[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const T left = w.at[k % 2][k / 2 * 2], right = w.at[k % 2][k / 2 * 2 + 1];
      const Pair<S> part = Pair<S>::of(left, right);
      high[k] = part.bits;
      low[k] = Pair<S>::of(left - part.first(), right - part.second()).bits;
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const S* row = other + lane % 16 * kPitch<S, kChannels> + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < kChannels / 16; ++n) {
      unsigned b[4];
      load_matrices<true>(b, row + n * 16);
      multiply(sums[2 * n], high, b[0], b[1], S{});
      multiply(sums[2 * n + 1], high, b[2], b[3], S{});
      multiply(sums[2 * n], low, b[0], b[1], S{});
      multiply(sums[2 * n + 1], low, b[2], b[3], S{});
    }
  }
  __device__ void finish() {}

  // This lane has kRows rows of the patch: row(0), ...
  static constexpr int kRows = 2;
  __device__ static int row(int slot) { return own_row(slot); }

  // Bit r: row r has a sum that is not finite.
  __device__ unsigned spoiled() const {
    unsigned bits = 0;
#pragma unroll
    for (int n = 0; n < kChannels / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) bits |= isfinite(sums[n][k]) ? 0u : 1u << row(k / 2);
    }
    return __reduce_or_sync(kAll, bits);
  }

  // Writes sums * factor[slot] (0 where that is 0) to the rows that to[slot] names, up to `channels`.
  __device__ void store(S* const (&to)[kRows], const T (&factor)[kRows], int channels, bool aligned) const {
    const int first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int n = 0; n < kChannels / 8; ++n) {
      const int c = n * 8 + first;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (to[r] == nullptr || c >= channels) continue;
        const T left = factor[r] == 0 ? T{0} : sums[n][2 * r] * factor[r];
        const T right = factor[r] == 0 ? T{0} : sums[n][2 * r + 1] * factor[r];
        if (aligned) {
          *reinterpret_cast<unsigned*>(to[r] + c) = Pair<S>::of(left, right).bits;
        } else {
          to[r][c] = Storage<S>::store(left);
          if (c + 1 < channels) to[r][c + 1] = Storage<S>::store(right);
        }
      }
    }
  }
};

// A warp's own rows, for scores.
template <typename S, int kChannels>
struct Own {
  using T = float;
  struct Shared {};
  unsigned part[kChannels / 16][4];

  // Row r is features.row(cell(r)), or nothing if that is negative. Returns whether each of the lane's rows has an
  // element that is not 0, as bits 0 and 1.
  template <typename Cell>
  __device__ unsigned load(Shared& /*shared*/, const Features<S>& features, Cell cell) {
    const int first = static_cast<int>(threadIdx.x) % 4 * 2;
    unsigned any = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = cell(own_row(r));
      const S* row = features.row(at < 0 ? 0 : at);
#pragma unroll
      for (int n = 0; n < kChannels / 8; ++n) {
        const int c = n * 8 + first;
        unsigned v = 0;
        if (at >= 0 && features.aligned) {
          if (c < features.channels) v = *reinterpret_cast<const unsigned*>(row + c);
        } else if (at >= 0) {
          const auto* bits = reinterpret_cast<const unsigned short*>(row);
          v = c < features.channels ? bits[c] : 0;
          if (c + 1 < features.channels) v |= static_cast<unsigned>(bits[c + 1]) << 16;
        }
        part[n / 2][n % 2 * 2 + r] = v;
        any |= (v & 0x7fff7fffu) != 0 ? 1u << r : 0u;
      }
    }
    return any | __shfl_xor_sync(kAll, any, 1) | __shfl_xor_sync(kAll, any, 2) | __shfl_xor_sync(kAll, any, 3);
  }

  __device__ Pairs<T> scores(Shared& /*shared*/, const S* other) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const S* row = other + (lane % 8 + lane / 16 * 8) * kPitch<S, kChannels> + lane / 8 % 2 * 8;
    float left[4] = {}, right[4] = {};
#pragma unroll
    for (int n = 0; n < kChannels / 16; ++n) {
      unsigned b[4];
      load_matrices<false>(b, row + n * 16);
      multiply(left, part[n], b[0], b[1], S{});
      multiply(right, part[n], b[2], b[3], S{});
    }
    return {{{left[0], left[1], right[0], right[1]}, {left[2], left[3], right[2], right[3]}}};
  }
};

// --- one by one ------------------------------------------------------------------------------------------------------

template <typename T>
struct alignas(16) Vector {
  static constexpr int kCount = 16 / sizeof(T);
  T at[kCount];
};

template <typename T, int kChannels>
struct PlainProduct {
  static constexpr int kVector = Vector<T>::kCount, kVectors = kChannels / (8 * kVector), kRows = 4;
  static_assert(kChannels % (8 * kVector) == 0);
  struct alignas(16) Shared {
    T weight[kWarps][kCells][kCells];  // [other cell][own row]
  };
  // Lane 8 g + q has rows 4 g .. 4 g + 3 and vectors q, q + 8, ... of the channels. What one band of patches adds is
  // summed up by itself.
  SumIn<T> sums[kRows][kVectors * kVector] = {};
  T part[kRows][kVectors * kVector] = {};
  int last_band = -1;

  __device__ void add(Shared& shared, const Pairs<T>& w, const T* other, int band) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    auto& weight = shared.weight[threadIdx.x / 32];
    if (band != last_band) finish();
    last_band = band;
    unsigned cells = 0;  // with a weight for one of the rows
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        weight[other_cell(k)][own_row(r)] = w.at[r][k];
        cells |= w.at[r][k] != 0 ? 1u << other_cell(k) : 0u;
      }
    }
    cells = __reduce_or_sync(kAll, cells);
    __syncwarp();
    constexpr int kAtOnce = 2;
#pragma unroll 1
    for (int first = 0; first < kCells; first += kAtOnce) {
      if ((cells >> first & ((1u << kAtOnce) - 1)) == 0) continue;
#pragma unroll
      for (int k = first; k < first + kAtOnce; ++k) {
        T own[kRows];
#pragma unroll
        for (int r = 0; r < kRows; r += kVector) {
          const auto v = *reinterpret_cast<const Vector<T>*>(&weight[k][lane / 8 * kRows + r]);
#pragma unroll
          for (int e = 0; e < kVector; ++e) own[r + e] = v.at[e];
        }
#pragma unroll
        for (int n = 0; n < kVectors; ++n) {
          const T* from = other + k * kPitch<T, kChannels> + (n * 8 + lane % 8) * kVector;
          const auto x = *reinterpret_cast<const Vector<T>*>(from);
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
#pragma unroll
            for (int e = 0; e < kVector; ++e) {
              part[r][n * kVector + e] = fma(own[r], x.at[e], part[r][n * kVector + e]);
            }
          }
        }
      }
    }
  }
  __device__ void finish() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kVectors * kVector; ++c) {
        sums[r][c].add(part[r][c]);
        part[r][c] = 0;
      }
    }
  }

  __device__ static int row(int slot) { return static_cast<int>(threadIdx.x) % 32 / 8 * kRows + slot; }

  // The sums of each of the lane's rows times those of `with` (null: 0) less the origin (null: 0), up to `channels`.
  // What meets a sum of 0 may be anything.
  __device__ void dot(const T* const (&with)[kRows], const T* origin, int channels, T (&result)[kRows]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      result[r] = 0;
#pragma unroll
      for (int k = 0; k < kVectors * kVector; ++k) {
        const int c = (k / kVector * 8 + static_cast<int>(threadIdx.x) % 8) * kVector + k % kVector;
        const T sum = sums[r][k].total();
        if (with[r] == nullptr || c >= channels || sum == 0) continue;
        result[r] += sum * (with[r][c] - (origin == nullptr ? T{0} : origin[c]));
      }
      for (int k = 4; k > 0; k /= 2) result[r] += __shfl_xor_sync(kAll, result[r], k);
    }
  }

  __device__ unsigned spoiled() const {
    unsigned bits = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kVectors * kVector; ++c) bits |= isfinite(sums[r][c].value) ? 0u : 1u << row(r);
    }
    return __reduce_or_sync(kAll, bits);
  }

  __device__ void store(T* const (&to)[kRows], const T (&factor)[kRows], int channels, bool aligned) const {
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
      const int c = (n * 8 + static_cast<int>(threadIdx.x) % 8) * kVector;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (to[r] == nullptr || c >= channels) continue;
        Vector<T> v;
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          v.at[e] = factor[r] == 0 ? T{0} : sums[r][n * kVector + e].total() * factor[r];
        }
        if (aligned) {
          *reinterpret_cast<Vector<T>*>(to[r] + c) = v;
        } else {
#pragma unroll
          for (int e = 0; e < kVector; ++e) {
            if (c + e < channels) to[r][c + e] = v.at[e];
          }
        }
      }
    }
  }
};
template <int kChannels>
struct Product<float, kChannels> : PlainProduct<float, kChannels> {};
template <int kChannels>
struct Product<double, kChannels> : PlainProduct<double, kChannels> {};

template <typename T, int kChannels>
struct PlainOwn {
  static constexpr int kVector = Vector<T>::kCount;
  struct alignas(16) Shared {
    T row[kWarps][kCells][kPitch<T, kChannels>];
    T score[kWarps][kCells][kCells + 1];
  };

  template <typename Cell>
  __device__ unsigned load(Shared& shared, const Features<T>& features, Cell cell) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    auto& rows = shared.row[threadIdx.x / 32];
    unsigned live = 0;  // bit r: row r has an element that is not 0
    for (int r = 0; r < kCells; ++r) {
      const int at = cell(r);
      bool any = false;
      for (int c = lane; c < kChannels; c += 32) {
        const T v = at >= 0 && c < features.channels ? features.row(at)[c] : T{0};
        rows[r][c] = v;
        any = any || v != 0;
      }
      live |= __any_sync(kAll, any) != 0 ? 1u << r : 0u;
    }
    __syncwarp();
    return (live >> own_row(0) & 1u) | (live >> own_row(1) & 1u) << 1;
  }

  // Lane 16 h + 4 a + b multiplies rows a, a + 4, .. and cells b, b + 4, .. over half of the channels.
  __device__ Pairs<T> scores(Shared& shared, const T* other) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int a = lane % 16 / 4, b = lane % 4;
    T q[4][4] = {};
#pragma unroll 1
    for (int c = lane / 16 * kVector; c < kChannels; c += 2 * kVector) {
      Vector<T> own[4], cell[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        own[r] = *reinterpret_cast<const Vector<T>*>(&shared.row[warp][a + 4 * r][c]);
        cell[r] = *reinterpret_cast<const Vector<T>*>(other + (b + 4 * r) * kPitch<T, kChannels> + c);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int e = 0; e < kVector; ++e) q[r][k] = fma(own[r].at[e], cell[k].at[e], q[r][k]);
        }
      }
    }
    auto& score = shared.score[warp];
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const T sum = q[r][k] + __shfl_xor_sync(kAll, q[r][k], 16);
        if (k / 2 == lane / 16) score[a + 4 * r][b + 4 * k] = sum;
      }
    }
    __syncwarp();
    Pairs<T> pairs;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int k = 0; k < 4; ++k) pairs.at[r][k] = score[own_row(r)][other_cell(k)];
    }
    return pairs;
  }
};
template <int kChannels>
struct Own<float, kChannels> : PlainOwn<float, kChannels> {};
template <int kChannels>
struct Own<double, kChannels> : PlainOwn<double, kChannels> {};

}  // namespace contextpool::cuda::maps
