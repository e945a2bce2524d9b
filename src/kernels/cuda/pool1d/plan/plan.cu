// The plan: for each target its support, and in it the sources that matter (planner.cuh).
#include "kernels/cuda/pool1d/plan/plan.h"

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/plan/planner.cuh"
#include "kernels/cuda/pool1d/plan/sort.h"

namespace contextpool::cuda {
namespace {

// kAlone: sequences of up to kLongSequence tokens without a tree; the kernel makes the maxima of groups itself.
template <int kLanes, bool kAlone>
__global__ void __launch_bounds__(kThreads)
    plan_kernel(const __grid_constant__ Problem in, const __grid_constant__ Precision precision, int* counts,
                int chunks) {
  after_previous();
  if (in.tree.exists()) let_next_start();
  constexpr int kTargets = kThreads / kLanes;  // of a thread block
  const int blocks = (in.targets + kTargets - 1) / kTargets, b = static_cast<int>(blockIdx.x) / blocks;
  const int m = static_cast<int>(blockIdx.x) % blocks * kTargets + static_cast<int>(threadIdx.x) / kLanes;
  const int i = in.first_position() + m;
  const bool here = m < in.targets;
  const float sigma = here ? in.sigma[static_cast<std::int64_t>(b) * in.targets + m] : 1.f;
  const float own = here ? token_log(in, b, i) : 0.f;
  const float* group_maxima = in.group_max + static_cast<std::int64_t>(b) * ((in.tokens + kRows - 1) / kRows);
  if constexpr (kAlone) {
    __shared__ float shared[kLongSequence / kRows];
    for (int q = static_cast<int>(threadIdx.x) / 32; q * kRows < in.tokens; q += kThreads / 32) {
      const float log = group_max(token_log(in, b, q * kRows + static_cast<int>(threadIdx.x) % 32));
      if (threadIdx.x % 32 == 0) shared[q] = log;
    }
    __syncthreads();
    group_maxima = shared;
  }
  if (!here) return;
  Target target{0, 0, i, i + 1, i, 0, m, sigma};
  if (isnan(sigma)) {
    target.exponent = sigma;
  } else {
    // The largest whole r with r^2 <= 160 sigma^2, as the formula has it.
    const double square = 160. * sigma * sigma;
    double r = sigma > 0 ? fmin(floor(sqrt(square)), static_cast<double>(in.tokens)) : 0;
    if (r * r > square && r > 0) r -= 1;
    const int reach = static_cast<int>(r);
    constexpr float kLeast = 1.2e-38f;  // sigma may be infinite; 0 means something else
    target.scale = reach > 0 ? fmaxf(kScale / sigma, kLeast) : 0;
    const int high = in.causal ? i : min(in.tokens - 1, i + reach);
    Planner<kLanes>{in, precision, group_maxima, b, i, max(0, i - reach), high, own, target, {}}.run();
  }
  if (threadIdx.x % kLanes == 0) {
    in.plan[static_cast<std::int64_t>(b) * in.targets + m] = target;
    if (in.sorted != nullptr) {
      atomicAdd(
          counts + (static_cast<std::int64_t>(b) * chunks + m / kSortChunk) * kClasses + class_of_level(target.level),
          1);
    }
  }
}

}  // namespace

cudaError_t plan_targets(const Problem& in, const Precision& precision, int* counts, cudaStream_t stream) {
  const int chunks = sort_chunks(in.targets);
  const auto blocks = [&](int lanes) { return dim3(blocks_for(in.targets, kThreads / lanes).x * in.batch); };
  return plans_alone(in) ? launch<plan_kernel<kShortLanes, true>>(blocks(kShortLanes), kThreads, 0, stream, in,
                                                                  precision, counts, chunks)
                         : launch<plan_kernel<kLongLanes, false>>(blocks(kLongLanes), kThreads, 0, stream, in,
                                                                  precision, counts, chunks);
}

}  // namespace contextpool::cuda
