// The gradients of pool2d by target. With p_ij = a_ij / sum_k a_ik, q_ij = dy_i . x_j and f_ij = d_ij^2 inv_i:
//
//   c_i      = sum_j p_ij q_ij
//   dsigma_i = (sum_j p_ij f_ij q_ij - c_i sum_j p_ij f_ij) (2 / log2(e)) / sigma_i
//
// Both sums are linear in q, and q is a sum over channels: thread blocks take some channels each, and what they get is
// added up in a fixed order.
#include "kernels/cuda/pool2d/tiles.h"
#include "kernels/cuda/pool2d/window.cuh"

namespace contextpool::cuda::maps {
namespace {

template <typename S, int kChannels>
struct ScoreShared {
  Stages<S, kChannels> stages;
  SourceShared<S, kChannels> sources;
  typename Own<S, kChannels>::Shared own;
};

template <typename S, int kChannels>
__global__ void __launch_bounds__(kThreads, kResident<S>)
    score_kernel(Map<SumOf<S>> map, int chunks, const S* x_all, const S* dy_all, Scratch<SumOf<S>> scratch) {
  after_previous();
  using T = SumOf<S>;
  auto& shared = shared_memory<ScoreShared<S, kChannels>>();
  const Block block(map.targets, chunks);
  const std::int64_t first = block.batch * map.targets.cells(), all = map.batch * map.targets.cells();
  const OwnTargets<T> own(map, block, scratch.plan + first, scratch.moment_reach + first);
  Own<S, kChannels> rows_of_dy;
  const unsigned any =
      rows_of_dy.load(shared.own, features_of<S, kChannels>(map, block, map.targets, dy_all), [&](int r) {
        const Cell cell(block.patch_row, block.patch_column, r);
        return cell.on(map.targets) ? cell.index(map.targets) : -1;
      });
  SumIn<S> mass[2] = {}, mass_square[2] = {}, dot[2] = {}, dot_square[2] = {};
  const auto use = [&](const Pairs<T>& a, const Pairs<T>& falloff, const S* rows, int /*band*/) {
    const Pairs<T> q = rows_of_dy.scores(shared.own, rows);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      T part[4] = {};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const T w = a.at[r][k], product = w == 0 ? T{0} : w * q.at[r][k];
        part[0] += w;
        part[1] += w * falloff.at[r][k];
        part[2] += product;
        part[3] += product * falloff.at[r][k];
      }
      mass[r].add(part[0]);
      mass_square[r].add(part[1]);
      dot[r].add(part[2]);
      dot_square[r].add(part[3]);
    }
  };
  over_sources<S, kChannels>(map, block, own, features_of<S, kChannels>(map, block, map.pixels, x_all),
                             origin_of<T, kChannels>(map, block, scratch.origin),
                             map.log_weight + block.batch * map.pixels.cells(), shared.stages, shared.sources, use);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const T sums[4] = {sum_of_row(mass[r].total()), sum_of_row(mass_square[r].total()), sum_of_row(dot[r].total()),
                       sum_of_row(dot_square[r].total())};
    const Cell cell(block.patch_row, block.patch_column, own_row(r));
    if (threadIdx.x % 4 != 0 || !cell.on(map.targets)) continue;
    const std::int64_t m = first + cell.index(map.targets), at = block.chunk * all + m;
    scratch.dot[at] = sums[2];
    scratch.dot_square[at] = sums[3];
    scratch.any[at] = (any >> r & 1u) != 0;
    if (block.chunk != 0) continue;
    scratch.mass[m] = sums[0];
    scratch.mass_square[m] = sums[1];
  }
}

// dsigma, and what the pixels need to know of each target and each patch of targets: 16 threads a patch.
template <typename T>
__global__ void __launch_bounds__(kThreads) target_kernel(Map<T> map, int chunks, Scratch<T> scratch, T* dsigma) {
  after_previous();
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x, patch = thread / kCells;
  const int patches = map.targets.patches(), k = static_cast<int>(threadIdx.x) % kCells;
  const std::int64_t b = patch / patches, all = map.batch * map.targets.cells();
  const int own = static_cast<int>(patch % patches), columns = map.targets.patch_columns();
  const Cell cell(own / columns, own % columns, k);
  T reach = -1;
  if (b < map.batch && cell.on(map.targets)) {
    const std::int64_t m = b * map.targets.cells() + cell.index(map.targets);
    bool any = false;
    double dot = 0, dot_square = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      any = any || scratch.any[chunk * all + m] != 0;
      dot += static_cast<double>(scratch.dot[chunk * all + m]);
      dot_square += static_cast<double>(scratch.dot_square[chunk * all + m]);
    }
    const T mass = scratch.mass[m];
    T gradient = 0;
    if (any && mass != 0) {  // a gradient of 0 has no share, whatever the weights are
      const double inverse = 1 / static_cast<double>(mass), square = static_cast<double>(scratch.mass_square[m]);
      reach = scratch.plan[m].reach;
      scratch.plan[m].inverse = static_cast<T>(inverse);
      for (int chunk = 0; chunk < chunks; ++chunk) {
        T& mean = scratch.dot[chunk * all + m];
        mean = static_cast<T>(static_cast<double>(mean) * inverse);
      }
      // Without a neighbour there is nothing that sigma could change (and 1 / sigma may overflow).
      if (square != 0) {
        const double moment = (dot_square - dot * inverse * square) * inverse;
        gradient = static_cast<T>(moment * (2 / kLog2E) / static_cast<double>(map.sigma[m]));
      }
    }
    scratch.plan[m].reach = reach;
    dsigma[m] = gradient;
  }
  const unsigned votes = __ballot_sync(kAll, reach >= 0);
  for (int step = kCells / 2; step > 0; step /= 2) reach = fmax(reach, __shfl_xor_sync(kAll, reach, step));
  if (k != 0 || b >= map.batch) return;
  scratch.patch[patch] = {reach, votes >> threadIdx.x % 32 & 0xffffu};
  if (reach >= 0) atomicMax(scratch.radius + b, static_cast<int>(fmin(ceil(sqrt(reach)), T{kMaxSide})));
}

}  // namespace

template <typename S>
cudaError_t backward_targets(const Map<SumOf<S>>& map, const S* x, const S* dy, const Scratch<SumOf<S>>& scratch,
                             SumOf<S>* dsigma, cudaStream_t stream) {
  using T = SumOf<S>;
  const int chunks = chunks_of<S>(map.channels);
  constexpr std::int64_t kPatches = kThreads / kCells;  // of a thread block
  const std::int64_t patches = map.batch * map.targets.patches();
  if (const auto error = cudaMemsetAsync(scratch.radius, 0xff, sizeof(int) * map.batch, stream)) return error;  // -1
  const auto scored = with_chunk<S>(map.channels, [&](auto chunk) {
    constexpr int kChannels = decltype(chunk)::value;
    return launch<score_kernel<S, kChannels>>(blocks_of(map, map.targets, chunks), kThreads,
                                              shared_bytes<ScoreShared<S, kChannels>>(), stream, map, chunks, x, dy,
                                              scratch);
  });
  if (scored != cudaSuccess) return scored;
  return launch<target_kernel<T>>(blocks_for(patches, kPatches), kThreads, 0, stream, map, chunks, scratch, dsigma);
}

#define CONTEXTPOOL_INSTANTIATE(S)                                                                             \
  template cudaError_t backward_targets<S>(const Map<SumOf<S>>&, const S*, const S*, const Scratch<SumOf<S>>&, \
                                           SumOf<S>*, cudaStream_t);
CONTEXTPOOL_INSTANTIATE(double)
CONTEXTPOOL_INSTANTIATE(float)
CONTEXTPOOL_INSTANTIATE(__nv_bfloat16)
CONTEXTPOOL_INSTANTIATE(__half)
#undef CONTEXTPOOL_INSTANTIATE

}  // namespace contextpool::cuda::maps
