// Blocks of 2^k tokens reduced to 8 Chebyshev nodes inside themselves: those of the lowest level from the tokens
// (leaf.cuh), the others from their two children (levels.cuh). A thread block makes kRaiseUp levels.
#include <type_traits>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/tree/leaf.cuh"
#include "kernels/cuda/pool1d/tree/tree.h"

namespace contextpool::cuda {
namespace {

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
  if (__ldcg(in.may_use_tree + at.batch) == 0) {
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

}  // namespace

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

#define CONTEXTPOOL_INSTANTIATE(T)                                    \
  template cudaError_t raise_tokens<T>(const Problem&, cudaStream_t); \
  template cudaError_t raise_blocks<T>(const Problem&, cudaStream_t);
CONTEXTPOOL_INSTANTIATE(float)
CONTEXTPOOL_INSTANTIATE(__nv_bfloat16)
CONTEXTPOOL_INSTANTIATE(__half)
#undef CONTEXTPOOL_INSTANTIATE

}  // namespace contextpool::cuda
