// The order of features in memory, changed by squares that go through shared memory: both sides in whole lines.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool2d/tiles.h"

namespace contextpool::cuda::maps {
namespace {

constexpr int kSquare = 32;
constexpr int kLines = 8;  // rows of threads

// kSquare x kSquare elements, or pairs of them: 2 x 2 go through shared memory at once where that is possible.
template <typename S, int kPair>
__global__ void __launch_bounds__(kSquare* kLines)
    transpose_kernel(std::int64_t rows, std::int64_t columns, const S* in, S* out) {
  after_previous();
  constexpr int kEdge = kSquare * kPair;
  struct alignas(kPair * sizeof(S)) Few {
    S at[kPair];
  };
  __shared__ Few shared[kEdge][kSquare + 1];
  const std::int64_t across = (columns + kEdge - 1) / kEdge, down = (rows + kEdge - 1) / kEdge;
  const std::int64_t square = blockIdx.x % (across * down), map = blockIdx.x / (across * down);
  const std::int64_t r0 = square / across * kEdge, c0 = square % across * kEdge;
  in += map * rows * columns;
  out += map * rows * columns;
  const int x = static_cast<int>(threadIdx.x) % kSquare, y = static_cast<int>(threadIdx.x) / kSquare;
#pragma unroll
  for (int k = 0; k < kEdge; k += kLines) {
    if (r0 + k + y < rows && c0 + x * kPair < columns) {
      shared[k + y][x] = *reinterpret_cast<const Few*>(in + (r0 + k + y) * columns + c0 + x * kPair);
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kEdge; k += kLines) {
    if (c0 + k + y < columns && r0 + x * kPair < rows) {
      Few few;
#pragma unroll
      for (int e = 0; e < kPair; ++e) few.at[e] = shared[x * kPair + e][(k + y) / kPair].at[(k + y) % kPair];
      *reinterpret_cast<Few*>(out + (c0 + k + y) * rows + r0 + x * kPair) = few;
    }
  }
}

template <typename S, int kPair>
cudaError_t run(std::int64_t count, std::int64_t rows, std::int64_t columns, const void* in, void* out,
                cudaStream_t stream) {
  constexpr int kEdge = kSquare * kPair;
  const auto squares = ((columns + kEdge - 1) / kEdge) * ((rows + kEdge - 1) / kEdge);
  return launch<transpose_kernel<S, kPair>>(blocks_for(count * squares, 1), kSquare * kLines, 0, stream, rows, columns,
                                            static_cast<const S*>(in), static_cast<S*>(out));
}

bool in_pairs(std::int64_t rows, std::int64_t columns, const void* in, const void* out) {
  constexpr std::uintptr_t kPairBytes = 4;
  const auto address = reinterpret_cast<std::uintptr_t>(in) | reinterpret_cast<std::uintptr_t>(out);
  return rows % 2 == 0 && columns % 2 == 0 && address % kPairBytes == 0;
}

}  // namespace

cudaError_t transpose(std::int64_t count, std::int64_t rows, std::int64_t columns, int size, const void* in, void* out,
                      cudaStream_t stream) {
  switch (size) {
    case 2:
      return in_pairs(rows, columns, in, out) ? run<unsigned short, 2>(count, rows, columns, in, out, stream)
                                              : run<unsigned short, 1>(count, rows, columns, in, out, stream);
    case 4: return run<unsigned, 1>(count, rows, columns, in, out, stream);
    default: return run<unsigned long long, 1>(count, rows, columns, in, out, stream);
  }
}

}  // namespace contextpool::cuda::maps
