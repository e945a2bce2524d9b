// A block of the lowest level from its 64 tokens: with w_j = 2^(l_j log2(e) - e_b), e_b = ceil(log2 of the block's
// weight),
//
//   nodes[b][q] = sum_j w_j L_q(j) x_j,   mass[b][q] = sum_j w_j L_q(j).
//
// A warp has a block. The mass is carried as one more channel. A masked token is skipped, not multiplied by 0. In
// float32 x is x - origin; half types use the matrix units.
#pragma once

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/pool1d/tree/levels.cuh"

namespace contextpool::cuda {

constexpr int kWarps = kThreads / 32;
constexpr int kUpBlocks = 1 << kRaiseUp;  // blocks of the lowest level in a thread block that goes up: a warp has one
static_assert(kUpBlocks == kWarps && kTreeColumns == 64);

constexpr int kRowStride = kTreeColumns + 1;  // of rows in shared memory; the last column is the mass
constexpr int kTokenRow = kTreeColumns * 2;   // bytes of a token's channels in half types

// Bytes from the start of a block of tokens to piece p (16 bytes) of row r; permuted, so that a column of pieces lies
// in different banks.
__device__ inline int token_offset(int r, int p) { return r * kTokenRow + ((p ^ (r & 7)) << 4); }

struct UpShared {
  union {
    float weight[kWarps][1 << kLeaf][kNodes];          // float32: w_j L_q(j)
    unsigned char tokens[kWarps][kTokenRow << kLeaf];  // half types: a block of x
    float rows[2][kUpBlocks * kNodes * kRowStride];    // levels, by turns
  };
  float token_weight[kWarps][1 << kLeaf];
  float log[kRaiseUp + 1][kUpBlocks];
};

// What the weights of the tokens of a warp's block are made of.
struct BlockLogs {
  float token[2], block;

  __device__ void load(const Problem& in, const Place& at) {
    const float* l = in.log_weight + static_cast<std::int64_t>(at.batch) * in.tokens;
    const int b = at.first + static_cast<int>(threadIdx.x) / 32, j = (b << kLeaf) + threadIdx.x % 32;
    block = b < blocks_at(in, kLeaf) ? __ldcg(in.block_log + block_index(in, at.batch, kLeaf, b)) : 0.f;
    token[0] = j < in.tokens ? __ldcg(l + j) : minus_infinity();
    token[1] = j + 32 < in.tokens ? __ldcg(l + j + 32) : minus_infinity();
  }

  // The weights (0: masked) to shared memory; a bit per live token.
  __device__ void weigh(UpShared& shared, unsigned (&live)[2]) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Exponent v(token[h]);
      const bool alive = v.whole != minus_infinity();
      live[h] = __ballot_sync(0xffffffffu, alive);
      shared.token_weight[warp][h * 32 + lane] = alive ? exp2f(v.minus(block_exponent(block))) : 0.f;
    }
    __syncwarp();
  }
};

// A warp's block of the lowest level: this thread's share of its rows.
template <typename T>
struct Leaf {
  float sums[8][2], mass;  // node lane / 4; channels 8 n + 2 (lane % 4) and the next

  // On the matrix units; a weight is the sum of two numbers of the storage type, one in rows 0 - 7, one in 8 - 15.
  // Tokens come in halves of a block: one is on its way while the other is used.
  __device__ void reduce(const Problem& in, const Place& at, const BlockLogs& logs, UpShared& shared) {
    unsigned live[2];
    logs.weigh(shared, live);
    const int block = at.first + static_cast<int>(threadIdx.x) / 32;
    const bool exists = block < blocks_at(in, kLeaf);
    fetch(in, at, shared, block, 0, live[0], exists);
    fetch(in, at, shared, block, 1, live[1], exists);
    float sum[8][4] = {};
    mass = 0;
    copy_wait<1>();
    __syncwarp();
    if (exists) add(shared, 0, sum);
    copy_wait<0>();
    __syncwarp();
    if (exists) add(shared, 1, sum);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      sums[n][0] = sum[n][0] + sum[n][2];
      sums[n][1] = sum[n][1] + sum[n][3];
    }
    mass += __shfl_xor_sync(0xffffffffu, mass, 1);
    mass += __shfl_xor_sync(0xffffffffu, mass, 2);
  }

  // Half h of a block of x to shared memory.
  __device__ static void fetch(const Problem& in, const Place& at, UpShared& shared, int block, int h, unsigned live,
                               bool exists) {
    const int lane = threadIdx.x % 32, j0 = (block << kLeaf) + h * 32;
    unsigned char* tokens = shared.tokens[threadIdx.x / 32] + h * 32 * kTokenRow;
    const T* x = static_cast<const T*>(in.x) + in.x_start(at.batch) + j0 * in.x_token_stride + at.column;
    if (exists && in.aligned && live == 0xffffffffu && at.column + kTreeColumns <= in.channels) {
      const int piece = lane % 8;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int r = k * 4 + lane / 8;
        copy16(tokens + token_offset(r, piece), x + r * in.x_token_stride + piece * 8);
      }
    } else if (exists && in.aligned) {
      const int piece = lane % 8;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int r = k * 4 + lane / 8;
        const bool valid = (live >> r & 1) != 0 && at.column + piece * 8 < in.channels;
        copy16(tokens + token_offset(r, piece), valid ? x + r * in.x_token_stride + piece * 8 : in.x, valid);
      }
    } else if (exists) {
      for (int r = 0; r < 32; ++r) {
        for (int d = lane; d < kTreeColumns; d += 32) {
          const bool valid = (live >> r & 1) != 0 && at.column + d < in.channels;
          reinterpret_cast<T*>(tokens + token_offset(r, d / 8))[d % 8] =
              valid ? __ldcg(x + r * in.x_token_stride + d) : from_float<T>(0.f);
        }
      }
    }
    copy_commit();
  }

  __device__ void add(const UpShared& shared, int h, float (&sum)[8][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, q = lane / 4;
    const unsigned char* tokens = shared.tokens[warp];
#pragma unroll
    for (int k = h * 32; k < h * 32 + 32; k += 16) {
      unsigned a[4];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int j = k + e * 8 + lane % 4 * 2;
        const float w0 = shared.token_weight[warp][j] * kLeafTable.token[j][q];
        const float w1 = shared.token_weight[warp][j + 1] * kLeafTable.token[j + 1][q];
        const T h0 = from_float<T>(w0), h1 = from_float<T>(w1);
        a[e * 2] = pack(h0, h1);
        a[e * 2 + 1] = pack(from_float<T>(w0 - to_float(h0)), from_float<T>(w1 - to_float(h1)));
        mass += w0 + w1;
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        unsigned b[4];
        load_matrix_transposed(b, tokens + token_offset(k + lane % 16, n * 2 + lane / 16));
        multiply<T>(sum[2 * n], a, b[0], b[1]);
        multiply<T>(sum[2 * n + 1], a, b[2], b[3]);
      }
    }
  }

  __device__ void store(UpShared& shared) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* row = shared.rows[0] + (warp * kNodes + lane / 4) * kRowStride;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      row[n * 8 + lane % 4 * 2] = sums[n][0];
      row[n * 8 + lane % 4 * 2 + 1] = sums[n][1];
    }
    if (lane % 4 == 0) row[kTreeColumns] = mass;
  }

  __device__ static unsigned pack(T low, T high) {
    return static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(&low)) |
           static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(&high)) << 16;
  }
};

template <>
struct Leaf<float> {
  float sums[kNodes][2], mass;  // channels lane and lane + 32; mass of node lane % 8

  __device__ void reduce(const Problem& in, const Place& at, const BlockLogs& logs, UpShared& shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto* x = static_cast<const float*>(in.x) + in.x_start(at.batch) + at.column;
    const bool first = at.column + lane < in.channels, second = at.column + lane + 32 < in.channels;
    const float* origin = in.origin_of(at.batch) + at.column;
    const float off[2] = {first ? __ldcg(origin + lane) : 0.f, second ? __ldcg(origin + lane + 32) : 0.f};
    unsigned live[2];
    logs.weigh(shared, live);
    const int j0 = (at.first + warp) << kLeaf;
    for (int k = lane; k < (1 << kLeaf) * kNodes; k += 32) {
      shared.weight[warp][k / kNodes][k % kNodes] =
          shared.token_weight[warp][k / kNodes] * kLeafTable.token[k / kNodes][k % kNodes];
    }
    __syncwarp();
    mass = 0;
    for (int j = 0; j < 1 << kLeaf; ++j) mass += shared.weight[warp][j][lane % kNodes];
#pragma unroll
    for (int q = 0; q < kNodes; ++q) sums[q][0] = sums[q][1] = 0;
    constexpr int kAhead = 16;  // rows on their way at once
#pragma unroll 1
    for (int j = 0; j < 1 << kLeaf; j += kAhead) {
      const unsigned alive = live[j / 32] >> (j % 32);
      float v[kAhead][2];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const float* row = x + (j0 + j + k) * in.x_token_stride;
        const bool here = (alive >> k & 1) != 0;
        v[k][0] = here && first ? __ldcg(row + lane) - off[0] : 0.f;
        v[k][1] = here && second ? __ldcg(row + lane + 32) - off[1] : 0.f;
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const float4 w0 = *reinterpret_cast<const float4*>(&shared.weight[warp][j + k][0]);
        const float4 w1 = *reinterpret_cast<const float4*>(&shared.weight[warp][j + k][4]);
        const float w[kNodes] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
        for (int q = 0; q < kNodes; ++q) {
          sums[q][0] += w[q] * v[k][0];
          sums[q][1] += w[q] * v[k][1];
        }
      }
    }
  }

  __device__ void store(UpShared& shared) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* rows = shared.rows[0] + warp * kNodes * kRowStride;
#pragma unroll
    for (int q = 0; q < kNodes; ++q) {
      rows[q * kRowStride + lane] = sums[q][0];
      rows[q * kRowStride + lane + 32] = sums[q][1];
    }
    if (lane < kNodes) rows[lane * kRowStride + kTreeColumns] = mass;
  }
};

}  // namespace contextpool::cuda
