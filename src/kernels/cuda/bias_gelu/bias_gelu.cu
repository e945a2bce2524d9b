// A lane has a piece of 16 bytes of a row (or one feature, where rows do not start at 16 bytes); the warps of a block
// take turns with the rows of its share. The backward adds up the bias's gradient over these rows; how many they are
// depends on the number of rows alone, so that sums have one order.
#include "kernels/cuda/bias_gelu/bias_gelu.h"

#include <algorithm>

#include "kernels/cuda/elementwise/columns.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr std::int64_t kLeastRows = 64, kMostShares = 1024;

std::int64_t rows_of_share(const BiasGelu& in) {
  return std::max(kLeastRows, (in.rows + kMostShares - 1) / kMostShares);
}
std::int64_t shares_of(const BiasGelu& in) { return (in.rows + rows_of_share(in) - 1) / rows_of_share(in); }

__device__ inline float gelu(float z) { return 0.5f * z * (1.f + erff(z * 0.70710678118654752f)); }
__device__ inline float gelu_slope(float z) {
  return 0.5f * (1.f + erff(z * 0.70710678118654752f)) + z * 0.39894228040143268f * expf(-0.5f * z * z);
}

// dy null: y = gelu(x + bias) goes to `to`. Else dx goes there, and the sums over this block's rows to parts [shares,
// features].
template <typename T, int kPiece, bool kBackward>
__global__ void __launch_bounds__(kThreads)
    bias_gelu_kernel(const BiasGelu in, std::int64_t rows_each, const T* dy, T* to, float* parts) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kWarp + lane) * kPiece;
  const bool inside = column < in.features;
  const std::int64_t begin = blockIdx.y * rows_each;
  const std::int64_t end = begin + rows_each < in.rows ? begin + rows_each : in.rows;
  const T* const x = static_cast<const T*>(in.x);
  float bias[kPiece], sum[kPiece];
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    bias[i] = inside ? in.bias[column + i] : 0.f;
    sum[i] = 0;
  }
  if (inside) {
#pragma unroll 2
    for (std::int64_t row = begin + warp; row < end; row += kWarps) {
      const std::int64_t at = row * in.features + column;
      const auto values = load<T, kPiece>(x + at);
      Vector<T, kPiece> result;
      if constexpr (kBackward) {
        const auto grad = load<T, kPiece>(dy + at);
#pragma unroll
        for (int i = 0; i < kPiece; ++i) {
          const float d = widen(grad.at[i]) * gelu_slope(widen(values.at[i]) + bias[i]);
          sum[i] += d;
          result.at[i] = narrow<T>(d);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kPiece; ++i) result.at[i] = narrow<T>(gelu(widen(values.at[i]) + bias[i]));
      }
      store<T, kPiece>(to + at, result);
    }
  }
  if constexpr (kBackward) {
    __shared__ float shared[kWarps][kWarp * kPiece];
#pragma unroll
    for (int i = 0; i < kPiece; ++i) shared[warp][lane * kPiece + i] = sum[i];
    __syncthreads();
    for (int c = threadIdx.x; c < kWarp * kPiece; c += kThreads) {
      const std::int64_t of = static_cast<std::int64_t>(blockIdx.x) * kWarp * kPiece + c;
      if (of >= in.features) continue;
      float total = 0;
      for (int w = 0; w < kWarps; ++w) total += shared[w][c];
      parts[blockIdx.y * in.features + of] = total;
    }
  }
}

template <typename T, int kPiece, bool kBackward>
cudaError_t launch(const BiasGelu& in, const void* dy, void* to, float* parts, cudaStream_t stream) {
  const std::int64_t across = (in.features + kWarp * kPiece - 1) / (kWarp * kPiece);
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(shares_of(in)));
  return launch_kernel(bias_gelu_kernel<T, kPiece, kBackward>, grid, kThreads, stream, in, rows_of_share(in),
                       static_cast<const T*>(dy), static_cast<T*>(to), parts);
}

template <typename T, bool kBackward>
cudaError_t run(const BiasGelu& in, const void* dy, void* to, float* parts, cudaStream_t stream) {
  const bool whole = in.features % kWhole<T> == 0 && aligned(in.x, 16) && aligned(to, 16) && aligned(dy, 16);
  return whole ? launch<T, kWhole<T>, kBackward>(in, dy, to, parts, stream)
               : launch<T, 1, kBackward>(in, dy, to, parts, stream);
}

template <bool kBackward>
cudaError_t with_type(const BiasGelu& in, const void* dy, void* to, float* parts, cudaStream_t stream) {
  switch (in.type) {
    case Type::f32: return run<float, kBackward>(in, dy, to, parts, stream);
    case Type::bf16: return run<__nv_bfloat16, kBackward>(in, dy, to, parts, stream);
    case Type::f16: return run<__half, kBackward>(in, dy, to, parts, stream);
    case Type::f64: break;
  }
  return cudaErrorNotSupported;
}

}  // namespace

cudaError_t bias_gelu(const BiasGelu& in, void* y, cudaStream_t stream) {
  return with_type<false>(in, nullptr, y, nullptr, stream);
}

std::size_t bias_gelu_backward_workspace(const BiasGelu& in) {
  return static_cast<std::size_t>(shares_of(in) * in.features) * sizeof(float);
}

cudaError_t bias_gelu_backward(const BiasGelu& in, const void* dy, void* dx, float* dbias, void* workspace,
                               cudaStream_t stream) {
  auto* const parts = static_cast<float*>(workspace);
  const auto error = with_type<true>(in, dy, dx, parts, stream);
  if (error != cudaSuccess) return error;
  return column_sums(parts, static_cast<int>(shares_of(in)), static_cast<int>(in.features), dbias, stream);
}

}  // namespace contextpool::cuda
