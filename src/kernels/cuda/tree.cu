// Blocks of 2^k tokens reduced to 8 Chebyshev nodes inside themselves. With w_j = 2^(l_j log2(e) - e_b):
//   nodes[b][q] = sum_j w_j L_q(j) x_j,   mass[b][q] = sum_j w_j L_q(j),   e_b = ceil(log2 of the block's weight),
//   parent[q'] = sum over both children c and q of 2^(e_c - e_b) L_q'(node q of c) child_c[q]      (exact: degree 7)
// Going down is the transpose. The mass is carried as one more channel. A masked token is skipped, not
// multiplied by 0.
#include "kernels/cuda/tree.h"

#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kBlocks = 1 << kRaise;  // of the lowest level in a thread block
constexpr int kWarps = kThreads / 32;
static_assert(kBlocks == 2 * kWarps && kTreeColumns == 64);

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
__device__ Place place(const Problem& in, int low) {
  const int groups = ((in.tokens - 1) >> (low + kRaise)) + 1;
  return {static_cast<int>(blockIdx.x) / groups, static_cast<int>(blockIdx.x) % groups * kBlocks,
          static_cast<int>(blockIdx.y) * kTreeColumns};
}
__device__ int blocks_at(const Problem& in, int level) {
  return level > in.tree.last ? 0 : in.tree.offset[level - kLeaf + 1] - in.tree.offset[level - kLeaf];
}
__device__ std::int64_t block_index(const Problem& in, int batch, int level, int block) {
  return static_cast<std::int64_t>(batch) * in.tree.blocks + in.tree.offset[level - kLeaf] + block;
}

constexpr int kRowStride = kTreeColumns + 1;  // of rows in shared memory; the last column is the mass
constexpr int kTokenStride = kTreeColumns + 8;

struct UpShared {
  union {
    float weight[kWarps][1 << kLeaf][kNodes];                    // float32: w_j L_q(j)
    unsigned short tokens[kWarps][(1 << kLeaf) * kTokenStride];  // half types: a block of x
    float rows[2][kBlocks * kNodes * kRowStride];                // levels, by turns
  };
  float token_weight[kWarps][1 << kLeaf];
  float log[kRaise + 1][kBlocks];
};

// The weights of the tokens of a warp's block (0: masked) to shared memory; a bit per live token.
__device__ void weigh_block(const Problem& in, const Place& at, UpShared& shared, int j0, unsigned (&live)[2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = j0 >> kLeaf;
  const float* l = in.log_weight + static_cast<std::int64_t>(at.batch) * in.tokens;
  const float exponent =
      block < blocks_at(in, kLeaf) ? block_exponent(in.block_log[block_index(in, at.batch, kLeaf, block)]) : 0.f;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int j = j0 + h * 32 + lane;
    const float v = j < in.tokens ? l[j] * kLog2e : minus_infinity();
    live[h] = __ballot_sync(0xffffffffu, v != minus_infinity());
    shared.token_weight[warp][h * 32 + lane] = v == minus_infinity() ? 0.f : exp2f(v - exponent);
  }
  __syncwarp();
}

// One of a warp's two blocks at the lowest level: this thread's share of its rows, at store(q, column, value).
template <typename T>
struct Leaf {
  float sums[2][8][2], mass[2];  // node lane / 4; channels 8 n + 2 (lane % 4) and the next

  // On the matrix units; a weight is the sum of two numbers of the storage type, one in rows 0 - 7, one in 8 - 15.
  __device__ void reduce(const Problem& in, const Place& at, UpShared& shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, q = lane / 4;
    auto* tokens = reinterpret_cast<T*>(shared.tokens[warp]);
    const T* x = static_cast<const T*>(in.x) + at.batch * in.x_batch_stride;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int j0 = (at.first + warp * 2 + c) << kLeaf;
      unsigned live[2];
      weigh_block(in, at, shared, j0, live);
      if (in.aligned) {
#pragma unroll
        for (int k = 0; k < 16; ++k) {
          const int j = k * 4 + lane / 8, d = at.column + lane % 8 * 8;
          const bool valid = (live[k / 8] >> (j % 32) & 1) != 0 && d < in.channels;
          copy16(tokens + j * kTokenStride + lane % 8 * 8, valid ? x + (j0 + j) * in.x_token_stride + d : in.x, valid);
        }
      } else {
        for (int j = 0; j < 1 << kLeaf; ++j) {
          for (int d = lane; d < kTreeColumns; d += 32) {
            const bool valid = ((j < 32 ? live[0] : live[1]) >> (j % 32) & 1) != 0 && at.column + d < in.channels;
            tokens[j * kTokenStride + d] = valid ? x[(j0 + j) * in.x_token_stride + at.column + d] : from_float<T>(0.f);
          }
        }
      }
      copy_commit();
      float sum[8][4] = {};
      mass[c] = 0;
      copy_wait<0>();
      __syncwarp();
#pragma unroll
      for (int k = 0; k < 1 << kLeaf; k += 16) {
        unsigned a[4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int j = k + h * 8 + lane % 4 * 2;
          const float w0 = shared.token_weight[warp][j] * kLeafTable.token[j][q];
          const float w1 = shared.token_weight[warp][j + 1] * kLeafTable.token[j + 1][q];
          const T h0 = from_float<T>(w0), h1 = from_float<T>(w1);
          a[h * 2] = pack(h0, h1);
          a[h * 2 + 1] = pack(from_float<T>(w0 - to_float(h0)), from_float<T>(w1 - to_float(h1)));
          mass[c] += w0 + w1;
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          unsigned b[4];
          load_matrix_transposed(b, tokens + (k + lane % 16) * kTokenStride + n * 16 + lane / 16 * 8);
          multiply<T>(sum[2 * n], a, b[0], b[1]);
          multiply<T>(sum[2 * n + 1], a, b[2], b[3]);
        }
      }
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        sums[c][n][0] = sum[n][0] + sum[n][2];
        sums[c][n][1] = sum[n][1] + sum[n][3];
      }
      mass[c] += __shfl_xor_sync(0xffffffffu, mass[c], 1);
      mass[c] += __shfl_xor_sync(0xffffffffu, mass[c], 2);
      __syncwarp();
    }
  }

  __device__ void store(UpShared& shared) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float* row = shared.rows[0] + ((warp * 2 + c) * kNodes + lane / 4) * kRowStride;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        row[n * 8 + lane % 4 * 2] = sums[c][n][0];
        row[n * 8 + lane % 4 * 2 + 1] = sums[c][n][1];
      }
      if (lane % 4 == 0) row[kTreeColumns] = mass[c];
    }
  }

  __device__ static unsigned pack(T low, T high) {
    return static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(&low)) |
           static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(&high)) << 16;
  }
};

template <>
struct Leaf<float> {
  float sums[2][kNodes][2], mass[2];  // channels lane and lane + 32; mass of node lane % 8

  __device__ void reduce(const Problem& in, const Place& at, UpShared& shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto* x = static_cast<const float*>(in.x) + at.batch * in.x_batch_stride + at.column;
    const bool first = at.column + lane < in.channels, second = at.column + lane + 32 < in.channels;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int j0 = (at.first + warp * 2 + c) << kLeaf;
      unsigned live[2];
      weigh_block(in, at, shared, j0, live);
      for (int k = lane; k < (1 << kLeaf) * kNodes; k += 32) {
        shared.weight[warp][k / kNodes][k % kNodes] =
            shared.token_weight[warp][k / kNodes] * kLeafTable.token[k / kNodes][k % kNodes];
      }
      __syncwarp();
      mass[c] = 0;
      for (int j = 0; j < 1 << kLeaf; ++j) mass[c] += shared.weight[warp][j][lane % kNodes];
#pragma unroll
      for (int q = 0; q < kNodes; ++q) sums[c][q][0] = sums[c][q][1] = 0;
      constexpr int kAhead = 16;  // rows on their way at once
#pragma unroll 1
      for (int j = 0; j < 1 << kLeaf; j += kAhead) {
        const unsigned alive = (j < 32 ? live[0] : live[1]) >> (j % 32);
        float v[kAhead][2];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          const float* row = x + (j0 + j + k) * in.x_token_stride;
          const bool here = (alive >> k & 1) != 0;
          v[k][0] = here && first ? row[lane] : 0.f;
          v[k][1] = here && second ? row[lane + 32] : 0.f;
        }
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          const float4 w0 = *reinterpret_cast<const float4*>(&shared.weight[warp][j + k][0]);
          const float4 w1 = *reinterpret_cast<const float4*>(&shared.weight[warp][j + k][4]);
          const float w[kNodes] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
          for (int q = 0; q < kNodes; ++q) {
            sums[c][q][0] += w[q] * v[k][0];
            sums[c][q][1] += w[q] * v[k][1];
          }
        }
      }
      __syncwarp();
    }
  }

  __device__ void store(UpShared& shared) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float* rows = shared.rows[0] + (warp * 2 + c) * kNodes * kRowStride;
#pragma unroll
      for (int q = 0; q < kNodes; ++q) {
        rows[q * kRowStride + lane] = sums[c][q][0];
        rows[q * kRowStride + lane + 32] = sums[c][q][1];
      }
      if (lane < kNodes) rows[lane * kRowStride + kTreeColumns] = mass[c];
    }
  }
};

// The same from a level already in memory.
template <typename T>
__device__ void read_blocks(const Problem& in, const Place& at, int low, UpShared& shared) {
  for (int k = threadIdx.x; k < kBlocks * kNodes * kRowStride; k += kThreads) {
    const int row = k / kRowStride, column = k % kRowStride, block = at.first + row / kNodes;
    float value = 0;
    if (block < blocks_at(in, low)) {
      const std::int64_t node = block_index(in, at.batch, low, block) * kNodes + row % kNodes;
      if (column == kTreeColumns) {
        value = in.mass[node];
      } else if (at.column + column < in.channels) {
        value = to_float(static_cast<const T*>(in.nodes)[node * in.channels + at.column + column]);
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
  if (blockIdx.y == 0) {
    for (int r = threadIdx.x; r < count * kNodes; r += kThreads)
      in.mass[node + r] = rows[r * kRowStride + kTreeColumns];
  }
}

// Levels low + 1 .. low + kRaise of 16 blocks of level low; those of the lowest level themselves from the tokens.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2) up_kernel(const __grid_constant__ Problem in, int low) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<UpShared*>(memory);
  const Place at = place(in, low);
  if (!uses_tree(in, at.batch)) return;
  if (threadIdx.x < (kRaise + 1) * kBlocks) {
    const int k = threadIdx.x / kBlocks, c = threadIdx.x % kBlocks, block = (at.first >> k) + c;
    const bool exists = c < kBlocks >> k && block < blocks_at(in, low + k);
    shared.log[k][c] = exists ? in.block_log[block_index(in, at.batch, low + k, block)] : minus_infinity();
  }
  if (low == kLeaf) {
    Leaf<T> leaf;
    leaf.reduce(in, at, shared);
    __syncthreads();
    leaf.store(shared);
  } else {
    read_blocks<T>(in, at, low, shared);
  }
  __syncthreads();
  if (low == kLeaf) write_level<T>(in, at, low, at.first, kBlocks, shared.rows[0]);
  for (int k = 1; k <= kRaise && low + k <= in.tree.last; ++k) {
    const float* from = shared.rows[(k - 1) & 1];
    float* to = shared.rows[k & 1];
    for (int p = threadIdx.x; p < (kBlocks >> k) * kRowStride; p += kThreads) {
      const int parent = p / kRowStride, column = p % kRowStride;
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
    write_level<T>(in, at, low + k, at.first >> k, kBlocks >> k, to);
  }
}

// Adds the parts of every block's gradient into the first; a thread has four columns of a row.
__global__ void __launch_bounds__(kThreads) sum_parts_kernel(const __grid_constant__ Problem in, float* gradient) {
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

// Level low + kRaise and the levels between, down to level low. A thread has four columns of a block.
__global__ void __launch_bounds__(kThreads) down_kernel(const __grid_constant__ Problem in, int low, float* gradient) {
  constexpr int kVectors = kTreeColumns / 4;
  static_assert(kThreads == kBlocks * kVectors);
  __shared__ float4 rows[2][kBlocks / 2 * kNodes * kVectors];
  const Place at = place(in, low);
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
    read(low + kRaise, at.first >> kRaise, sum);
    for (int q = 0; q < kNodes; ++q) rows[0][q * kVectors + vector] = sum[q];
  }
  for (int k = kRaise - 1; k >= 0; --k) {
    const int block = (at.first >> k) + c;
    const bool mine = c < kBlocks >> k, exists = mine && block < blocks_at(in, low + k);
    float4 own[kNodes];
    if (exists) read(low + k, block, own);
    __syncthreads();
    if (exists && low + k + 1 <= in.tree.last) {
      const float4* from = rows[(kRaise - 1 - k) & 1] + c / 2 * kNodes * kVectors + vector;
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
        rows[(kRaise - k) & 1][(c * kNodes + q) * kVectors + vector] = own[q];
      } else if (here) {
        row_at(low, block)[q * width / 4] = own[q];
      }
    }
  }
}

dim3 tree_grid(const Problem& in, int low, int channels) {
  const int groups = ((in.tokens - 1) >> (low + kRaise)) + 1;
  return dim3(groups * in.batch, (channels + kTreeColumns - 1) / kTreeColumns);
}

}  // namespace

Tree make_tree(int tokens, int batch) {
  Tree tree{};
  if (tokens < 1 << kLeaf) return tree;
  tree.split = kSplit;
  for (const int least : kSplitBatches) tree.split += batch >= least ? 1 : 0;
  for (tree.last = kLeaf; tokens >> (tree.last + 2) != 0; ++tree.last) {  // blocks of up to half of the sequence
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
cudaError_t build_tree(const Problem& in, cudaStream_t stream) {
  constexpr int kBytes = sizeof(UpShared);
  const cudaError_t error = allow_shared<up_kernel<T>>(kBytes);
  if (error != cudaSuccess) return error;
  for (int low = kLeaf; low == kLeaf || low < in.tree.last; low += kRaise) {
    up_kernel<T><<<tree_grid(in, low, in.channels), kThreads, kBytes, stream>>>(in, low);
  }
  return cudaGetLastError();
}

cudaError_t push_down(const Problem& in, float* gradient, cudaStream_t stream) {
  std::int64_t vectors = 0;
  for (int k = in.tree.split + 1; k <= in.tree.last; ++k) {
    vectors += static_cast<std::int64_t>(in.tree.count(k)) * kNodes * (gradient_width(in.channels) / 4);
  }
  if (vectors > 0) {
    const auto blocks = static_cast<unsigned>((vectors + kThreads - 1) / kThreads * in.batch);
    sum_parts_kernel<<<blocks, kThreads, 0, stream>>>(in, gradient);
  }
  int low = kLeaf;
  while (low + kRaise < in.tree.last) low += kRaise;
  for (; low >= kLeaf; low -= kRaise) {
    down_kernel<<<tree_grid(in, low, gradient_width(in.channels)), kThreads, 0, stream>>>(in, low, gradient);
  }
  return cudaGetLastError();
}

template cudaError_t build_tree<float>(const Problem&, cudaStream_t);
template cudaError_t build_tree<__nv_bfloat16>(const Problem&, cudaStream_t);
template cudaError_t build_tree<__half>(const Problem&, cudaStream_t);

}  // namespace contextpool::cuda
