#include "kernels/cuda/pool1d/float32/balance.h"

#include "kernels/cuda/common/launch.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kBlock = 32 * 32, kEach = kBalanced / kBlock;  // threads; tokens of each

// The sums over the thread block, for all threads.
__device__ Residue sum_of_all(Residue v) {
  __shared__ Residue part[kBlock / 32];
  const auto add_lanes = [&] {
    for (int k = 16; k > 0; k /= 2) {
      v.gradient += __shfl_xor_sync(0xffffffffu, v.gradient, k);
      v.weight += __shfl_xor_sync(0xffffffffu, v.weight, k);
      v.square += __shfl_xor_sync(0xffffffffu, v.square, k);
    }
  };
  add_lanes();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = part[threadIdx.x % 32];
  add_lanes();
  return v;
}

// sums: over the sequence. Where a gradient is NaN, they say nothing about the others.
__device__ float balanced(float dl, float weight, const Residue& sums) {
  if (!(sums.square > 0) || !isfinite(sums.gradient)) return dl;
  const double part =
      weight * (kCommonVariance * sums.weight + weight) / (kCommonVariance * sums.weight * sums.weight + sums.square);
  return static_cast<float>(dl - sums.gradient * part);
}

// Adds up the shares. kWhole: of whole sequences, and balances them; else their sums go to out.residue.
template <bool kWhole>
__global__ void __launch_bounds__(kBlock)
    sum_kernel(const __grid_constant__ Problem in, const __grid_constant__ Backward out, int count) {
  after_previous();
  const int chunks = balance_chunks(in.tokens), b = static_cast<int>(blockIdx.x) / chunks;
  const int chunk = static_cast<int>(blockIdx.x) % chunks;
  const std::int64_t row = static_cast<std::int64_t>(b) * in.tokens,
                     all = static_cast<std::int64_t>(in.batch) * in.tokens;
  float dl[kEach], weight[kEach];
  Residue sums{};
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int j = chunk * kBalanced + k * kBlock + static_cast<int>(threadIdx.x);
    dl[k] = weight[k] = 0;
    if (j >= in.tokens) continue;
    weight[k] = out.weight[row + j];
    for (int c = 0; c < count; ++c) dl[k] += out.partial[c * all + row + j];
    sums.gradient += dl[k];
    sums.weight += weight[k];
    sums.square += static_cast<double>(weight[k]) * weight[k];
  }
  sums = sum_of_all(sums);
  if (!kWhole && threadIdx.x == 0) out.residue[blockIdx.x] = sums;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int j = chunk * kBalanced + k * kBlock + static_cast<int>(threadIdx.x);
    if (j < in.tokens) out.dlog_weight[row + j] = kWhole ? balanced(dl[k], weight[k], sums) : dl[k];
  }
}

__global__ void __launch_bounds__(kBlock)
    balance_kernel(const __grid_constant__ Problem in, const __grid_constant__ Backward out) {
  after_previous();
  const int chunks = balance_chunks(in.tokens), b = static_cast<int>(blockIdx.x) / chunks;
  Residue sums{};
  for (int c = threadIdx.x; c < chunks; c += kBlock) {
    const Residue one = out.residue[static_cast<std::int64_t>(b) * chunks + c];
    sums.gradient += one.gradient;
    sums.weight += one.weight;
    sums.square += one.square;
  }
  sums = sum_of_all(sums);
  const std::int64_t row = static_cast<std::int64_t>(b) * in.tokens;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int j = static_cast<int>(blockIdx.x) % chunks * kBalanced + k * kBlock + static_cast<int>(threadIdx.x);
    if (j < in.tokens) out.dlog_weight[row + j] = balanced(out.dlog_weight[row + j], out.weight[row + j], sums);
  }
}

}  // namespace

cudaError_t balance(const Problem& in, const Backward& out, int count, cudaStream_t stream) {
  const dim3 grid(in.batch * balance_chunks(in.tokens));
  if (in.tokens <= kBalanced) return launch<sum_kernel<true>>(grid, kBlock, 0, stream, in, out, count);
  const cudaError_t error = launch<sum_kernel<false>>(grid, kBlock, 0, stream, in, out, count);
  return error != cudaSuccess ? error : launch<balance_kernel>(grid, kBlock, 0, stream, in, out);
}

}  // namespace contextpool::cuda
