// The emulation itself: conversions, shuffles, barriers, and what it must refuse.
#include <cuda_runtime.h>

#include "values.h"

namespace contextpool::testing {
namespace {

using cuda_emulation::Order;

cudaError_t launch(void (*kernel)(float*), dim3 grid, dim3 block, float* to) {
  const cudaLaunchConfig_t config{.gridDim = grid, .blockDim = block};
  return cudaLaunchKernelEx(&config, kernel, to);
}

TEST(Emulation, RoundsToNearestWithTiesToEven) {
  const auto bf16 = [](double v) { return rounded(Type::bf16, v); };
  EXPECT_EQ(bf16(1 + 0x1p-8), 1);
  EXPECT_EQ(bf16(1 + 0x1p-8 + 0x1p-20), 1 + 0x1p-7);
  EXPECT_EQ(bf16(1 + 3 * 0x1p-8), 1 + 0x1p-6);
  EXPECT_EQ(bf16(3.4e38), kInfinity);
  EXPECT_EQ(bf16(-kInfinity), -kInfinity);
  EXPECT_TRUE(std::isnan(bf16(kNan)));
  const auto f16 = [](double v) { return rounded(Type::f16, v); };
  EXPECT_EQ(f16(1 + 0x1p-11), 1);
  EXPECT_EQ(f16(1 + 3 * 0x1p-11), 1 + 0x1p-9);
  EXPECT_EQ(f16(-65519), -65504);
  EXPECT_EQ(f16(65520), kInfinity);
  EXPECT_EQ(f16(0x1p-25), 0);
  EXPECT_EQ(f16(0x1.8p-25), 0x1p-24);
  EXPECT_EQ(f16(0x1p-14 - 0x1p-26), 0x1p-14);
  EXPECT_TRUE(std::isnan(f16(kNan)));
  for (unsigned bits = 0; bits < 0x7c00; ++bits) {  // every number of float16, there and back
    const __half v{static_cast<std::uint16_t>(bits)};
    ASSERT_EQ(__float2half_rn(__half2float(v)).bits, bits);
  }
}

void sum_of_block(float* to) {
  __shared__ float warps[2];
  float v = static_cast<float>(threadIdx.x);
  for (int lanes = 16; lanes > 0; lanes /= 2) v += __shfl_xor_sync(0xffffffffu, v, lanes);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  to[blockIdx.x * blockDim.x + threadIdx.x] = warps[0] + warps[1] + static_cast<float>(blockIdx.x);
}

TEST(Emulation, SharesAcrossWarpsAndBlocks) {
  const auto results = in_any_order([] {
    Values to(Type::f32, 3 * 64);
    EXPECT_EQ(launch(sum_of_block, 3, 64, to.data<float>()), cudaSuccess);
    std::vector<Values> all;
    all.push_back(std::move(to));
    return all;
  });
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    const std::size_t block = i / 64, sum = 64 * 63 / 2 + block;
    EXPECT_EQ(results[0][i], static_cast<double>(sum)) << i;
  }
}

TEST(Emulation, RefusesGridsThatCudaRefuses) {
  EXPECT_EQ(launch(sum_of_block, 1, 2048, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(sum_of_block, 0, 32, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(sum_of_block, dim3(1, 65536), 32, nullptr), cudaErrorInvalidConfiguration);
}

void neighbour_without_barrier(float* to) {
  __shared__ float all[64];
  all[threadIdx.x] = static_cast<float>(threadIdx.x);
  to[threadIdx.x] = all[63 - threadIdx.x];
}

TEST(Emulation, ShowsAMissingBarrierAsNanOrByTheOrder) {
  const auto in_order = [](Order order) {
    cuda_emulation::set_order(order);
    Values to(Type::f32, 64);
    EXPECT_EQ(launch(neighbour_without_barrier, 1, 64, to.data<float>()), cudaSuccess);
    return to;
  };
  const auto backwards = in_order(Order::backwards), forwards = in_order(Order::forwards);
  EXPECT_TRUE(std::isnan(forwards[0]));
  EXPECT_TRUE(std::isnan(backwards[63]));
  EXPECT_FALSE(forwards.same_bits(backwards));
}

void barrier_of_half(float* to) {
  if (threadIdx.x < 16) __syncthreads();
  to[0] = __shfl_xor_sync(0xffffffffu, 1.f, 1);
}
void barriers_at_two_places(float* /*to*/) {
  if (threadIdx.x < 16) {  // NOLINT(bugprone-branch-clone)
    __syncthreads();
  } else {
    __syncthreads();
  }
}
void shuffle_after_return(float* to) {
  if (threadIdx.x == 5) return;
  to[0] = __shfl_xor_sync(0xffffffffu, 1.f, 1);
}
void shuffle_of_half(float* to) {
  if (threadIdx.x < 16) to[0] = __shfl_xor_sync(0xffffffffu, 1.f, 1);
  __syncthreads();
}

TEST(EmulationDeathTest, AbortsWhereThreadsAreMissing) {
  const auto run = [](void (*kernel)(float*)) {
    float to = 0;
    static_cast<void>(launch(kernel, 1, 32, &to));
  };
  EXPECT_DEATH(run(barrier_of_half), "a barrier that other threads never reach");
  EXPECT_DEATH(run(barriers_at_two_places), "other threads of the block are at another one");
  EXPECT_DEATH(run(shuffle_after_return), "lanes that have returned");
  EXPECT_DEATH(run(shuffle_of_half), "never reach|at another one");
}

}  // namespace
}  // namespace contextpool::testing
