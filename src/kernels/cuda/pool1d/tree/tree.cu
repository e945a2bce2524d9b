// Blocks of 2^k tokens reduced to 8 Chebyshev nodes inside themselves. With w_j = 2^(l_j log2(e) - e_b):
//   nodes[b][q] = sum_j w_j L_q(j) x_j,   mass[b][q] = sum_j w_j L_q(j),   e_b = ceil(log2 of the block's weight),
//   parent[q'] = sum over both children c and q of 2^(e_c - e_b) L_q'(node q of c) child_c[q]      (exact: degree 7)
// Going down is the transpose. The mass is carried as one more channel. A masked token is skipped, not
// multiplied by 0. In float32 x is x - origin.
#include "kernels/cuda/pool1d/tree/tree.h"

#include <type_traits>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/mma.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kWarps = kThreads / 32;
// Blocks of the lowest level in a thread block that goes up (a warp has one) or down.
constexpr int kUpBlocks = 1 << kRaiseUp, kDownBlocks = 1 << kRaiseDown;
static_assert(kUpBlocks == kWarps && kTreeColumns == 64);

// up[q'][c * 8 + q]: L_q' at node q of child c.
struct RaiseTable {
  float up[kNodes][2 * kNodes] = {};
  constexpr RaiseTable() {
    constexpr double node[kNodes] = {-0.98078528040323044913, -0.83146961230254523708, -0.55557023301960222474,
                                     -0.19509032201612826785, 0.19509032201612826785,  0.55557023301960222474,
                                     0.83146961230254523708,  0.98078528040323044913};
    for (int to = 0; to < kNodes; ++to) {
      for (int from = 0; from < 2 * kNodes; ++from) {
        up[to][from] = static_cast<float>(lagrange(to, 0.5 * node[from % kNodes] + (from < kNodes ? -0.5 : 0.5)));
      }
    }
  }
};
__constant__ RaiseTable kRaiseTable = RaiseTable();
__device__ const LeafTable kLeafTable = LeafTable();

// 2^(child's exponent - parent's).
__device__ float child_scale(float child_log, float parent_log) {
  return child_log == minus_infinity() ? 0.f : exp2f(block_exponent(child_log) - block_exponent(parent_log));
}
__device__ float4 add_scaled(float4 a, float s, float4 b) {
  return make_float4(a.x + s * b.x, a.y + s * b.y, a.z + s * b.z, a.w + s * b.w);
}

struct Place {  // where a thread block stands: blocks from `first` of level `low` on, channels from `column` on
  int batch, first, column;
};
// raise: levels that it goes up or down.
__device__ Place place(const Problem& in, int low, int raise, int channels) {
  const int groups = ((in.tokens - 1) >> (low + raise)) + 1;
  const Share share((channels + kTreeColumns - 1) / kTreeColumns);
  return {share.work / groups, (share.work % groups) << raise, share.part * kTreeColumns};
}
__device__ int blocks_at(const Problem& in, int level) {
  return level > in.tree.last ? 0 : in.tree.offset[level - kLeaf + 1] - in.tree.offset[level - kLeaf];
}
__device__ std::int64_t block_index(const Problem& in, int batch, int level, int block) {
  return static_cast<std::int64_t>(batch) * in.tree.blocks + in.tree.offset[level - kLeaf] + block;
}

constexpr int kRowStride = kTreeColumns + 1;  // of rows in shared memory; the last column is the mass
constexpr int kTokenRow = kTreeColumns * 2;   // bytes of a token's channels in half types

// Bytes from the start of a block of tokens to piece p (16 bytes) of row r; permuted, so that a column of pieces lies
// in different banks.
__device__ int token_offset(int r, int p) { return r * kTokenRow + ((p ^ (r & 7)) << 4); }

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
    const T* x = static_cast<const T*>(in.x) + at.batch * in.x_batch_stride + j0 * in.x_token_stride + at.column;
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
    const auto* x = static_cast<const float*>(in.x) + at.batch * in.x_batch_stride + at.column;
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

// The same from a level already in memory.
template <typename T>
__device__ void read_blocks(const Problem& in, const Place& at, int low, UpShared& shared) {
  for (int k = threadIdx.x; k < kUpBlocks * kNodes * kRowStride; k += kThreads) {
    const int row = k / kRowStride, column = k % kRowStride, block = at.first + row / kNodes;
    float value = 0;
    if (block < blocks_at(in, low)) {
      const std::int64_t node = block_index(in, at.batch, low, block) * kNodes + row % kNodes;
      if (column == kTreeColumns) {
        value = __ldcg(in.mass + node);
      } else if (at.column + column < in.channels) {
        value = to_float(__ldcg(static_cast<const T*>(in.nodes) + node * in.channels + at.column + column));
      }
    }
    shared.rows[0][k] = value;
  }
}

// Rows of a level, from shared memory to where they belong.
template <typename T>
__device__ void write_level(const Problem& in, const Place& at, int level, int first, int count, const float* rows) {
  count = min(count, blocks_at(in, level) - first);
  if (count <= 0) return;
  const std::int64_t node = block_index(in, at.batch, level, first) * kNodes;
  T* nodes = static_cast<T*>(in.nodes) + node * in.channels + at.column;
  const int column = threadIdx.x % 32 * 2;
  for (int r = threadIdx.x / 32; r < count * kNodes; r += kWarps) {
    const float* from = rows + r * kRowStride + column;
    T* to = nodes + static_cast<std::int64_t>(r) * in.channels + column;
    if (in.aligned && at.column + column + 1 < in.channels) {
      if constexpr (std::is_same_v<T, float>) {
        *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
      } else {
        *reinterpret_cast<unsigned*>(to) = Leaf<T>::pack(from_float<T>(from[0]), from_float<T>(from[1]));
      }
    } else {
      if (at.column + column < in.channels) to[0] = from_float<T>(from[0]);
      if (at.column + column + 1 < in.channels) to[1] = from_float<T>(from[1]);
    }
  }
  if (at.column == 0) {
    for (int r = threadIdx.x; r < count * kNodes; r += kThreads)
      in.mass[node + r] = rows[r * kRowStride + kTreeColumns];
  }
}

// Levels low + 1 .. low + kRaiseUp of 8 blocks of level low; those of the lowest level themselves from the tokens.
template <typename T>
__global__ void __launch_bounds__(kThreads, 3) up_kernel(const __grid_constant__ Problem in, int low) {
  // The first two need nothing of the kernel before them (the plan, the sort) and read what is older past the nearest
  // cache. But whoever waits for them waits for that kernel, too.
  const bool beside = low <= kLeaf + kRaiseUp;
  if (!beside) after_previous();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<UpShared*>(memory);
  const Place at = place(in, low, kRaiseUp, in.channels);
  BlockLogs logs;
  if (low == kLeaf) logs.load(in, at);  // asked for before it is known whether they are needed
  if (__ldcg(in.wide + at.batch) == 0) {
    if (beside) after_previous();
    return;
  }
  if (threadIdx.x < (kRaiseUp + 1) * kUpBlocks) {
    const int k = threadIdx.x / kUpBlocks, c = threadIdx.x % kUpBlocks, block = (at.first >> k) + c;
    const bool exists = c < kUpBlocks >> k && block < blocks_at(in, low + k);
    shared.log[k][c] = exists ? __ldcg(in.block_log + block_index(in, at.batch, low + k, block)) : minus_infinity();
  }
  if (low == kLeaf) {
    Leaf<T> leaf;
    leaf.reduce(in, at, logs, shared);
    __syncthreads();
    leaf.store(shared);
  } else {
    read_blocks<T>(in, at, low, shared);
  }
  __syncthreads();
  if (low == kLeaf) write_level<T>(in, at, low, at.first, kUpBlocks, shared.rows[0]);
  for (int k = 1; k <= kRaiseUp && low + k <= in.tree.last; ++k) {
    const float* from = shared.rows[(k - 1) & 1];
    float* to = shared.rows[k & 1];
    // The masses, which the first channels' thread block writes, come last.
    const int parents = kUpBlocks >> k, columns = parents * kTreeColumns;
    for (int p = threadIdx.x; p < columns + (at.column == 0 ? parents : 0); p += kThreads) {
      const int parent = p < columns ? p / kTreeColumns : p - columns;
      const int column = p < columns ? p % kTreeColumns : kTreeColumns;
      float child[2 * kNodes];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float s = child_scale(shared.log[k - 1][2 * parent + c], shared.log[k][parent]);
#pragma unroll
        for (int q = 0; q < kNodes; ++q) {
          child[c * kNodes + q] = s * from[((2 * parent + c) * kNodes + q) * kRowStride + column];
        }
      }
#pragma unroll
      for (int q = 0; q < kNodes; ++q) {
        float value = 0;
#pragma unroll
        for (int c = 0; c < 2 * kNodes; ++c) value += kRaiseTable.up[q][c] * child[c];
        to[(parent * kNodes + q) * kRowStride + column] = value;
      }
    }
    __syncthreads();
    write_level<T>(in, at, low + k, at.first >> k, kUpBlocks >> k, to);
  }
  if (beside) after_previous();
}

// Adds the parts of every block's gradient into the first; a thread has four columns of a row.
__global__ void __launch_bounds__(kThreads) sum_parts_kernel(const __grid_constant__ Problem in, float* gradient) {
  after_previous();
  const int vectors = gradient_width(in.channels) / 4, batch = blockIdx.x % in.batch;
  if (!uses_tree(in, batch)) return;
  std::int64_t k = static_cast<std::int64_t>(blockIdx.x / in.batch) * kThreads + threadIdx.x;
  int level = in.tree.split + 1;
  for (; level <= in.tree.last; ++level) {
    const std::int64_t size = static_cast<std::int64_t>(in.tree.count(level)) * kNodes * vectors;
    if (k < size) break;
    k -= size;
  }
  if (level > in.tree.last) return;
  const std::int64_t stride = static_cast<std::int64_t>(in.tree.count(level)) * kNodes * vectors;
  float4* at = reinterpret_cast<float4*>(gradient) + in.tree.part_block(batch, level, 0, 0) * kNodes * vectors + k;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (int part = 0; part < in.tree.parts(level); ++part) sum = add_scaled(sum, 1, at[part * stride]);
  *at = sum;
}

// Level low + kRaiseDown and the levels between, down to level low. A thread has four columns of a block.
__global__ void __launch_bounds__(kThreads) down_kernel(const __grid_constant__ Problem in, int low, float* gradient) {
  after_previous();
  constexpr int kVectors = kTreeColumns / 4;
  static_assert(kThreads == kDownBlocks * kVectors);
  __shared__ float4 rows[2][kDownBlocks / 2 * kNodes * kVectors];
  const Place at = place(in, low, kRaiseDown, gradient_width(in.channels));
  if (!uses_tree(in, at.batch)) return;
  const int vector = threadIdx.x % kVectors, c = threadIdx.x / kVectors, width = gradient_width(in.channels);
  const int column = at.column + vector * 4;
  const bool here = column < width;
  const auto row_at = [&](int level, int block) {
    return reinterpret_cast<float4*>(gradient + in.tree.part_block(at.batch, level, 0, block) * kNodes * width +
                                     column);
  };
  const auto read = [&](int level, int block, float4(&row)[kNodes]) {
    const bool exists = block < blocks_at(in, level) && here;
    const float4* from = exists ? row_at(level, block) : nullptr;
#pragma unroll
    for (int q = 0; q < kNodes; ++q) row[q] = exists ? from[q * width / 4] : make_float4(0, 0, 0, 0);
  };
  if (c == 0) {
    float4 sum[kNodes];
    read(low + kRaiseDown, at.first >> kRaiseDown, sum);
    for (int q = 0; q < kNodes; ++q) rows[0][q * kVectors + vector] = sum[q];
  }
  for (int k = kRaiseDown - 1; k >= 0; --k) {
    const int block = (at.first >> k) + c;
    const bool mine = c < kDownBlocks >> k, exists = mine && block < blocks_at(in, low + k);
    float4 own[kNodes];
    if (exists) read(low + k, block, own);
    __syncthreads();
    if (exists && low + k + 1 <= in.tree.last) {
      const float4* from = rows[(kRaiseDown - 1 - k) & 1] + c / 2 * kNodes * kVectors + vector;
      const float s = child_scale(in.block_log[block_index(in, at.batch, low + k, block)],
                                  in.block_log[block_index(in, at.batch, low + k + 1, block >> 1)]);
#pragma unroll
      for (int p = 0; p < kNodes; ++p) {
        const float4 parent = from[p * kVectors];
        if (s == 0) continue;
        // A weight that is no number gives nothing to those of whom nothing is asked.
        if (isnan(s) && parent.x == 0 && parent.y == 0 && parent.z == 0 && parent.w == 0) continue;
#pragma unroll
        for (int q = 0; q < kNodes; ++q) {
          const float up = (c & 1) != 0 ? kRaiseTable.up[p][kNodes + q] : kRaiseTable.up[p][q];
          own[q] = add_scaled(own[q], s * up, parent);
        }
      }
    }
    if (!exists) continue;
#pragma unroll
    for (int q = 0; q < kNodes; ++q) {
      if (k > 0) {
        rows[(kRaiseDown - k) & 1][(c * kNodes + q) * kVectors + vector] = own[q];
      } else if (here) {
        row_at(low, block)[q * width / 4] = own[q];
      }
    }
  }
}

dim3 tree_grid(const Problem& in, int low, int raise, int channels) {
  const int groups = ((in.tokens - 1) >> (low + raise)) + 1;
  return dim3(groups * in.batch * ((channels + kTreeColumns - 1) / kTreeColumns));
}

}  // namespace

Tree make_tree(int tokens, int batch) {
  Tree tree{};
  if (tokens < 1 << kLeaf) return tree;
  tree.split = kSplit;
  for (const int least : kSplitBatches) tree.split += batch >= least ? 1 : 0;
  for (tree.last = kLeaf; tokens >> (tree.last + 3) != 0; ++tree.last) {  // blocks of up to a quarter of the sequence
  }
  for (int k = kLeaf; k <= tree.last; ++k) {
    tree.offset[k - kLeaf] = tree.blocks;
    tree.blocks += ((tokens - 1) >> k) + 1;
    tree.offset[k - kLeaf + 1] = tree.blocks;
    tree.part_offset[k - kLeaf] = tree.part_blocks;
    tree.part_blocks += tree.count(k) * tree.parts(k);
  }
  return tree;
}

template <typename T>
cudaError_t raise_from(const Problem& in, int low, cudaStream_t stream) {
  constexpr int kBytes = shared_bytes<UpShared>();
  return launch<up_kernel<T>>(tree_grid(in, low, kRaiseUp, in.channels), kThreads, kBytes, stream, in, low);
}

template <typename T>
cudaError_t raise_tokens(const Problem& in, cudaStream_t stream) {
  return raise_from<T>(in, kLeaf, stream);
}

template <typename T>
cudaError_t raise_blocks(const Problem& in, cudaStream_t stream) {
  for (int low = kLeaf + kRaiseUp; low < in.tree.last; low += kRaiseUp) {
    if (const cudaError_t error = raise_from<T>(in, low, stream); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t push_down(const Problem& in, float* gradient, cudaStream_t stream) {
  std::int64_t vectors = 0;
  for (int k = in.tree.split + 1; k <= in.tree.last; ++k) {
    vectors += static_cast<std::int64_t>(in.tree.count(k)) * kNodes * (gradient_width(in.channels) / 4);
  }
  if (vectors > 0) {
    const auto blocks = static_cast<unsigned>((vectors + kThreads - 1) / kThreads * in.batch);
    const cudaError_t error = launch<sum_parts_kernel>(dim3(blocks), kThreads, 0, stream, in, gradient);
    if (error != cudaSuccess) return error;
  }
  int low = kLeaf;
  while (low + kRaiseDown < in.tree.last) low += kRaiseDown;
  for (; low >= kLeaf; low -= kRaiseDown) {
    const dim3 grid = tree_grid(in, low, kRaiseDown, gradient_width(in.channels));
    const cudaError_t error = launch<down_kernel>(grid, kThreads, 0, stream, in, low, gradient);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

#define CONTEXTPOOL_INSTANTIATE(T)                                    \
  template cudaError_t raise_tokens<T>(const Problem&, cudaStream_t); \
  template cudaError_t raise_blocks<T>(const Problem&, cudaStream_t);
CONTEXTPOOL_INSTANTIATE(float)
CONTEXTPOOL_INSTANTIATE(__nv_bfloat16)
CONTEXTPOOL_INSTANTIATE(__half)
#undef CONTEXTPOOL_INSTANTIATE

}  // namespace contextpool::cuda
