// Sums over rows that are the same bits in every run: parts first, then these added up in a fixed order.
#pragma once

#include "kernels/cuda/elementwise/launch.cuh"
#include "kernels/cuda/elementwise/vector.cuh"

namespace contextpool::cuda {

constexpr int kColumnRows = 16;

// parts [count, columns] -> sums [columns]. A block has 32 columns; its rows of threads take turns with the parts.
template <int kUnused = 0>
__global__ void __launch_bounds__(kWarp* kColumnRows)
    column_sums_kernel(const float* parts, int count, int columns, float* sums) {
  __shared__ float shared[kColumnRows][kWarp];
  const int lane = threadIdx.x % kWarp, y = threadIdx.x / kWarp, column = blockIdx.x * kWarp + lane;
  float sum = 0;
  if (column < columns) {
    for (int part = y; part < count; part += kColumnRows)
      sum += parts[static_cast<std::int64_t>(part) * columns + column];
  }
  shared[y][lane] = sum;
  __syncthreads();
  if (y != 0 || column >= columns) return;
  for (int other = 1; other < kColumnRows; ++other) sum += shared[other][lane];
  sums[column] = sum;
}

inline cudaError_t column_sums(const float* parts, int count, int columns, float* sums, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((columns + kWarp - 1) / kWarp);
  return launch_kernel(column_sums_kernel<0>, blocks, kWarp * kColumnRows, stream, parts, count, columns, sums);
}

}  // namespace contextpool::cuda
