// Products on the matrix units for bfloat16 and float16, sums in float32; a thread block is 4 warps, each with 16 of
// the 64 rows of the result:
//   RowProduct:   C[64 x 256] += A[64 x 32] B[32 x 256]      weights times rows (or 64 columns, of narrow tiles)
//   ScoreProduct: S[64 x 64]  += A[64 x 64] B[64 x 64]^T     dy times rows
// Shared memory holds panels of 64 channels: 128 bytes a row, its eight 16-byte pieces permuted by the row (piece p of
// row r stands at p xor r % 8), which is how Hopper's wgmma reads panels, and free of bank conflicts for ldmatrix
// elsewhere. Weights have rows of 64 bytes, likewise permuted. A thread's part of a result is the same for both
// instructions: rows g and g + 8 of its warp's 16 and columns 8 n + 2 q, 8 n + 2 q + 1, with g = lane / 4,
// q = lane % 4.
#pragma once

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/pool1d/problem.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CONTEXTPOOL_WGMMA 1
#else
#define CONTEXTPOOL_WGMMA 0
#endif

namespace contextpool::cuda {

constexpr int kWarpgroup = 128;
constexpr int kPanel = 64;             // channels of a panel
constexpr int kPanelRow = kPanel * 2;  // bytes
constexpr int kWeightRow = kRows * 2;  // bytes of a row of weights

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) & 31; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) >> 5; }

// Bytes from the start of a panel to piece p of row r.
__device__ inline int panel_offset(int r, int p) { return r * kPanelRow + ((p ^ (r & 7)) << 4); }

// Bytes from the start of 64 x 32 weights to piece p (of 4) of row r.
__device__ inline int weight_offset(int r, int p) { return r * kWeightRow + ((p ^ (r >> 1 & 3)) << 4); }

#if CONTEXTPOOL_WGMMA
__device__ inline std::uint64_t descriptor(const void* p, int leading_bytes, int eight_rows_bytes, int permutation) {
  const auto address = static_cast<std::uint64_t>(__cvta_generic_to_shared(p));
  return (address >> 4 & 0x3fff) | static_cast<std::uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<std::uint64_t>(eight_rows_bytes >> 4) << 32 | static_cast<std::uint64_t>(permutation) << 62;
}
// The same, so many bytes on. (The sum stays inside the 14 bits of the address.)
__device__ inline std::uint64_t descriptor_after(std::uint64_t d, int bytes) {
  return (d & 0xffffffff00000000u) | (static_cast<unsigned>(d) + static_cast<unsigned>(bytes >> 4));
}
// panel_bytes: from one panel to the next, where the channels are the columns of B.
__device__ inline std::uint64_t panel_descriptor(const void* p, int panel_bytes) {
  return descriptor(p, panel_bytes, 8 * kPanelRow, 1);
}
__device__ inline std::uint64_t weight_descriptor(const void* p) { return descriptor(p, 16, 8 * kWeightRow, 2); }
__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
__device__ inline void products_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory"); }
// True in one thread of the warp, always the same.
__device__ inline bool elected() {
  int is = 0;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}\n" : "=r"(is));
  return is != 0;
}
// What this thread wrote to shared memory (or had copied there) may be read by wgmma after the next barrier.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }
#else
__device__ inline void products_begin() {}
__device__ inline void products_commit() {}
__device__ inline void products_wait() {}
__device__ inline void publish() {}
#endif

#define CONTEXTPOOL_F4(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define CONTEXTPOOL_F16(d, i) \
  CONTEXTPOOL_F4(d, i), CONTEXTPOOL_F4(d, (i) + 4), CONTEXTPOOL_F4(d, (i) + 8), CONTEXTPOOL_F4(d, (i) + 12)
#define CONTEXTPOOL_F32(d, i) CONTEXTPOOL_F16(d, i), CONTEXTPOOL_F16(d, (i) + 16)

#if CONTEXTPOOL_WGMMA
template <typename T>
__device__ inline void row_product(float (&d)[128], std::uint64_t a, std::uint64_t b, int add);
template <typename T>
__device__ inline void row_product(float (&d)[32], std::uint64_t a, std::uint64_t b, int add);
template <typename T>
__device__ inline void score_product(float (&d)[32], std::uint64_t a, std::uint64_t b);

#define CONTEXTPOOL_REGISTERS_32                                           \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
// The products, for one of the half types and its name in the instructions.
#define CONTEXTPOOL_PRODUCTS(T, name)                                                                      \
  template <>                                                                                              \
  __device__ inline void row_product<T>(float(&d)[128], std::uint64_t a, std::uint64_t b, int add) {       \
    asm volatile(                                                                                          \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                                      \
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." name "." name " {" CONTEXTPOOL_REGISTERS_32         \
        ", "                                                                                               \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                 \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                 \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                 \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                 \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "     \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"   \
        "}, %128, %129, p, 1, 1, 0, 1;\n}\n"                                                               \
        : CONTEXTPOOL_F32(d, 0), CONTEXTPOOL_F32(d, 32), CONTEXTPOOL_F32(d, 64), CONTEXTPOOL_F32(d, 96)    \
        : "l"(a), "l"(b), "r"(add));                                                                       \
  }                                                                                                        \
  template <>                                                                                              \
  __device__ inline void row_product<T>(float(&d)[32], std::uint64_t a, std::uint64_t b, int add) {        \
    asm volatile(                                                                                          \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                                       \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " {" CONTEXTPOOL_REGISTERS_32          \
        "}, %32, %33, p, 1, 1, 0, 1;\n}\n"                                                                 \
        : CONTEXTPOOL_F32(d, 0)                                                                            \
        : "l"(a), "l"(b), "r"(add));                                                                       \
  }                                                                                                        \
  template <>                                                                                              \
  __device__ inline void score_product<T>(float(&d)[32], std::uint64_t a, std::uint64_t b) {               \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " {" CONTEXTPOOL_REGISTERS_32 \
                 "}, %32, %33, 1, 1, 1, 0, 0;\n"                                                           \
                 : CONTEXTPOOL_F32(d, 0)                                                                   \
                 : "l"(a), "l"(b));                                                                        \
  }
CONTEXTPOOL_PRODUCTS(__nv_bfloat16, "bf16")
CONTEXTPOOL_PRODUCTS(__half, "f16")
#undef CONTEXTPOOL_PRODUCTS
#undef CONTEXTPOOL_REGISTERS_32
#endif

// Row of the 64 that this thread's k-th (0 or 1) row of a result is.
__device__ inline int matrix_row(int k) { return warp_id() * 16 + lane_id() / 4 + k * 8; }

// columns: of a tile, TileOf<T>::columns or narrow.
template <typename T, int columns>
struct RowProduct {
  static constexpr int kColumns = columns, kValues = columns / 2;
  static_assert(columns == TileOf<T>::columns || columns == TileOf<T>::narrow);
  static constexpr int kStageBytes = kRows * kColumns * 2;  // panels of 32 rows
  static constexpr int kPanelBytes = kRows * kPanelRow;
  static constexpr int kWeightBytes = kTile * kWeightRow;
  float sum[kValues];  // [columns / 8][rows g, g + 8][2]

  __device__ void clear() {
#pragma unroll
    for (int k = 0; k < kValues; ++k) sum[k] = 0;
  }
  __device__ bool finite() const {
    float zero[4] = {};  // NaN once a value is not finite
#pragma unroll
    for (int k = 0; k < kValues; ++k) zero[k % 4] = fmaf(sum[k], 0.f, zero[k % 4]);
    return zero[0] + zero[1] + zero[2] + zero[3] == 0;
  }

  // Starts the product (not add: into sums that hold nothing yet); a and b must stay as they are until products_wait().
  __device__ void start(const unsigned char* a, const unsigned char* b, bool add) {
#if !CONTEXTPOOL_WGMMA
    if (!add) clear();
#endif
    products_begin();
#if CONTEXTPOOL_WGMMA
    const std::uint64_t weights = weight_descriptor(a), rows = panel_descriptor(b, kPanelBytes);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      row_product<T>(sum, descriptor_after(weights, k * 32), descriptor_after(rows, k * 16 * kPanelRow),
                     k > 0 || add ? 1 : 0);
    }
#else
    const int row = lane_id() & 15, piece = lane_id() >> 4;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      unsigned ra[4];
      load_matrix(ra, a + weight_offset(warp_id() * 16 + row, k * 2 + piece));
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        unsigned r[4];
        load_matrix_transposed(r, b + n / 4 * kPanelBytes + panel_offset(k * 16 + row, n % 4 * 2 + piece));
        multiply<T>(*reinterpret_cast<float(*)[4]>(sum + 8 * n), ra, r[0], r[1]);
        multiply<T>(*reinterpret_cast<float(*)[4]>(sum + 8 * n + 4), ra, r[2], r[3]);
      }
    }
#endif
    products_commit();
  }

  // f(column, row k, value0, value1) for all of this thread's part.
  template <typename F>
  __device__ void each(F f) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const int column = n * 8 + lane_id() % 4 * 2;
      f(column, 0, sum[4 * n], sum[4 * n + 1]);
      f(column, 1, sum[4 * n + 2], sum[4 * n + 3]);
    }
  }
};

template <typename T>
struct ScoreProduct {
  static constexpr int kBytes = 64 * kPanelRow;  // of either factor
  float sum[32];                                 // as above

  __device__ void clear() {
#pragma unroll
    for (int k = 0; k < 32; ++k) sum[k] = 0;
  }

  __device__ void start(const unsigned char* a, const unsigned char* b) {
    products_begin();
#if CONTEXTPOOL_WGMMA
    const std::uint64_t first = panel_descriptor(a, 16), second = panel_descriptor(b, 16);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      score_product<T>(sum, descriptor_after(first, k * 32), descriptor_after(second, k * 32));
#else
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      unsigned ra[4];
      load_matrix(ra, a + panel_offset(warp_id() * 16 + (lane_id() & 15), k * 2 + (lane_id() >> 4)));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        unsigned rb[4];
        load_matrix(rb,
                    b + panel_offset(n * 16 + (lane_id() & 7) + (lane_id() >> 4) * 8, k * 2 + (lane_id() >> 3 & 1)));
        multiply<T>(*reinterpret_cast<float(*)[4]>(sum + 8 * n), ra, rb[0], rb[1]);
        multiply<T>(*reinterpret_cast<float(*)[4]>(sum + 8 * n + 4), ra, rb[2], rb[3]);
      }
    }
#endif
    products_commit();
  }
};

// Copies 16 bytes to shared memory at `to` + kOffset (zeros, where not valid).
template <int kOffset>
__device__ inline void copy_piece(unsigned to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0 + %3], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes), "n"(kOffset));
}

// The same, always valid: what decides about zeros costs as much as the copy.
template <int kOffset>
__device__ inline void copy_piece(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0 + %2], [%1], 16;\n" ::"r"(to), "l"(from), "n"(kOffset));
}

// Brings kRowCount rows of kPanels panels to shared memory; a thread brings one piece of rows first_row(), + kStep, ...
template <typename T, int kRowCount, int kPanels>
struct PanelLoader {
  static constexpr int kPieces = kPanels * 8, kStep = kWarpgroup / kPieces, kCount = kRowCount / kStep;
  static_assert(kWarpgroup % kPieces == 0 && kRowCount % kStep == 0 && (kStep == 4 || kStep % 8 == 0));

  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / kPieces; }
  __device__ static int piece() { return static_cast<int>(threadIdx.x) % kPieces; }

  // row(k): the address of this thread's piece of its k-th row; valid(k): whether it has one.
  template <int k = 0, typename Row, typename Valid>
  __device__ static void copy(unsigned even, unsigned odd, Row row, Valid valid) {
    if constexpr (k < kCount) {
      copy_piece<k * kStep / 8 * 8 * kPanelRow>(k * kStep % 8 == 0 ? even : odd, row(k), valid(k));
      copy<k + 1>(even, odd, row, valid);
    }
  }
  template <int k = 0, typename Row>
  __device__ static void copy(unsigned even, unsigned odd, Row row) {
    if constexpr (k < kCount) {
      copy_piece<k * kStep / 8 * 8 * kPanelRow>(k * kStep % 8 == 0 ? even : odd, row(k));
      copy<k + 1>(even, odd, row);
    }
  }
  // Where in shared memory this thread's pieces go: of its first row, and (kStep 4) of the next.
  struct To {
    unsigned even, odd;
    __device__ explicit To(const unsigned char* shared) {
      const auto base = static_cast<unsigned>(__cvta_generic_to_shared(shared + piece() / 8 * (kRowCount * kPanelRow)));
      even = base + panel_offset(first_row(), piece() % 8);
      odd = kStep == 4 ? base + panel_offset(first_row() + 4, piece() % 8) : even;
    }
    __device__ To(unsigned even, unsigned odd) : even(even), odd(odd) {}
    __device__ To after(int bytes) const { return {even + bytes, odd + bytes}; }
  };

  // inside: whether there are such channels.
  template <typename Row, typename Valid>
  __device__ static void load(const To& to, bool inside, Row row, Valid valid) {
    copy(to.even, to.odd, row, [&](int k) { return inside && valid(k); });
  }
  // There are such channels, and every row.
  template <typename Row>
  __device__ static void load(const To& to, Row row) {
    copy(to.even, to.odd, row);
  }
};

// Before a product whose B has values that are not finite: adds them where the weight is not 0 and takes them out of B,
// so that they change no bit of the other sums. Slow; only for tiles in which a sum is not finite.
template <typename T, int columns>
__device__ inline void add_non_finite(RowProduct<T, columns>& c, const unsigned char* a, unsigned char* b) {
#pragma unroll 1
  for (int k = 0; k < kRows; ++k) {
    float w[2];
    for (int r = 0; r < 2; ++r) {
      w[r] = to_float(reinterpret_cast<const T*>(a + weight_offset(matrix_row(r), k / 8))[k % 8]);
    }
    c.each([&](int column, int r, float& v0, float& v1) {
      const auto value = *reinterpret_cast<const Pair<T>*>(b + column / kPanel * c.kPanelBytes +
                                                           panel_offset(k, column % kPanel / 8) + column % 8 * 2);
      if (w[r] != 0 && !isfinite(value.first())) v0 += w[r] * value.first();
      if (w[r] != 0 && !isfinite(value.second())) v1 += w[r] * value.second();
    });
  }
  __syncthreads();
  for (int k = threadIdx.x; k < kRows * columns; k += kWarpgroup) {
    T& value = reinterpret_cast<T*>(b)[k];
    if (!isfinite(to_float(value))) value = from_float<T>(0.f);
  }
  publish();
  __syncthreads();
}

// Where a tile's rows wait to be written whole: 64 rows of all its channels, 16 of each warp. The padding keeps threads
// that write the parts of a product apart.
template <typename T, int columns>
struct Staged {
  static constexpr int kStride = columns * 2 + 16;
  static constexpr int kBytes = kTile * kStride;

  __device__ static unsigned char* at(unsigned char* rows, int row, int channel) {
    return rows + row * kStride + channel * 2;
  }
};

// Parts of products and of staged rows meet in four squares of 8 x 8 at a time: a lane names a row of one.
template <typename T, int columns>
__device__ inline unsigned char* first_square(unsigned char* rows) {
  return Staged<T, columns>::at(rows, warp_id() * 16 + (lane_id() & 15), lane_id() / 16 * 8);
}

// f(k, v0, v1, pair) for all of this thread's part of a product, with what is staged in the same places.
template <typename T, int columns, typename F>
__device__ inline void with_staged(RowProduct<T, columns>& product, unsigned char* rows, F f) {
  const unsigned char* from = first_square<T, columns>(rows);
#pragma unroll
  for (int n = 0; n < columns / 8; n += 2) {
    unsigned bits[4];
    load_matrix(bits, from + n * 16);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      f(k % 2, product.sum[4 * n + 2 * k], product.sum[4 * n + 2 * k + 1], Pair<T>{bits[k]});
    }
  }
}

// Puts a warp's part of a product there: value(k, v) is what becomes of v, in this thread's k-th row.
template <typename T, int columns, typename Value>
__device__ inline void stage(RowProduct<T, columns>& product, unsigned char* rows, Value value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(first_square<T, columns>(rows)));
#pragma unroll
  for (int n = 0; n < columns / 8; n += 2) {
    Pair<T> pair[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float* v = product.sum + 4 * n + 2 * k;
      pair[k] = Pair<T>::of(value(k % 2, v[0]), value(k % 2, v[1]));
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(to + n * 16),
                 "r"(pair[0].bits), "r"(pair[1].bits), "r"(pair[2].bits), "r"(pair[3].bits)
                 : "memory");
  }
#else
  product.each([&](int c, int k, float& v0, float& v1) {
    *reinterpret_cast<Pair<T>*>(Staged<T, columns>::at(rows, matrix_row(k), c)) =
        Pair<T>::of(value(k, v0), value(k, v1));
  });
#endif
  __syncwarp();
}

// How a warp goes over its 16 rows of a tile in pieces of 16 bytes: f(row, channel) for each of a lane's pieces.
template <int columns, typename F>
__device__ inline void each_piece(F f) {
  constexpr int kPieces = columns / 8;  // of a row
#pragma unroll
  for (int k = 0; k < 16; k += 32 / kPieces) f(k + lane_id() / kPieces, lane_id() % kPieces * 8);
}

// A warp writes its 16 rows: row(k) is where the k-th (0 .. 15) goes, null: nowhere; bytes of each, a multiple of 16.
// Later the rows may be written over: what has been asked for here is read by then.
template <typename T, int columns, typename Row>
__device__ inline void write_rows(unsigned char* rows, int bytes, Row row) {
#if CONTEXTPOOL_WGMMA
  publish();
  __syncwarp();
  // The copy engine takes addresses that a whole warp agrees on; that they do is seen from where they come from.
  const auto mine = reinterpret_cast<unsigned long long>(lane_id() < 16 ? row(lane_id()) : nullptr);
  const int warp = __shfl_sync(0xffffffffu, warp_id(), 0);
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(Staged<T, columns>::at(rows, warp * 16, 0)));
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    const unsigned long long to = __shfl_sync(0xffffffffu, mine, k);
    if (to != 0 && elected()) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(to),
                   "r"(from + k * Staged<T, columns>::kStride), "r"(bytes)
                   : "memory");
    }
  }
  if (elected()) {
    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
  }
#else
  __syncwarp();
  for (int k = 0; k < 16; ++k) {
    T* to = row(k);
    if (to == nullptr || lane_id() * 16 >= bytes) continue;
    reinterpret_cast<uint4*>(to)[lane_id()] =
        *reinterpret_cast<const uint4*>(Staged<T, columns>::at(rows, warp_id() * 16 + k, lane_id() * 8));
  }
#endif
}

}  // namespace contextpool::cuda
