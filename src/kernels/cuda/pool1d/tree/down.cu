// The gradients of blocks carried down the tree to the lowest level: the transpose of going up,
//
//   child_c[q] += 2^(e_c - e_b) sum_q' L_q'(node q of c) parent[q'],
//
// after the parts in which the sums of high levels were gathered have been added up. The mass is one more channel.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/tree/levels.cuh"
#include "kernels/cuda/pool1d/tree/tree.h"

namespace contextpool::cuda {
namespace {

constexpr int kDownBlocks = 1 << kRaiseDown;  // blocks of the lowest level in a thread block

__device__ float4 add_scaled(float4 a, float s, float4 b) {
  return make_float4(a.x + s * b.x, a.y + s * b.y, a.z + s * b.z, a.w + s * b.w);
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
        // A NaN weight gives nothing where the gradient is 0.
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

}  // namespace

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

}  // namespace contextpool::cuda
