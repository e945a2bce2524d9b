// An index over the half tiles of targets: the bounds of kIndexed of them together, so that source rows find the
// targets that use them without looking at every half tile.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/backward.h"

namespace contextpool::cuda {
namespace {

// A warp has the bounds of kIndexed half tiles.
__global__ void __launch_bounds__(kThreads)
    index_kernel(const __grid_constant__ Problem in, const int4* bounds, int4* index) {
  after_previous();
  const int size = index_size(in.tiles), lane = static_cast<int>(threadIdx.x) % 32;
  const int g = static_cast<int>((static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32);
  const int batch = g / size, k = g % size;
  if (batch >= in.batch) return;
  const int tiles = in.sorted == nullptr ? in.tiles : in.class_tile[batch * (kClasses + 1) + kClasses];
  int4 all = make_int4(0x7fffffff, 0, 0x7fffffff, -1);
#pragma unroll
  for (int n = 0; n < kIndexed; n += 32) {
    const int h = k * kIndexed + n + lane;
    if (h >= 2 * tiles) continue;
    const int4 one = bounds[static_cast<std::int64_t>(batch) * in.tiles * 2 + h];
    all = make_int4(min(all.x, one.x), max(all.y, one.y), min(all.z, one.z), max(all.w, one.w));
  }
  all.x = __reduce_min_sync(0xffffffffu, all.x);
  all.y = __reduce_max_sync(0xffffffffu, all.y);
  all.z = __reduce_min_sync(0xffffffffu, all.z);
  all.w = __reduce_max_sync(0xffffffffu, all.w);
  if (lane == 0) index[g] = all;
}

}  // namespace

cudaError_t index_bounds(const Problem& in, const Backward& out, cudaStream_t stream) {
  return launch<index_kernel>(blocks_for(static_cast<std::int64_t>(in.batch) * index_size(in.tiles), kThreads / 32),
                              kThreads, 0, stream, in, static_cast<const int4*>(out.bounds), out.index);
}

}  // namespace contextpool::cuda
