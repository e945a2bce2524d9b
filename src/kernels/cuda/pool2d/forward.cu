// y_i = sum_j a_ij x_j / sum_j a_ij: a thread block has 8 x 8 targets and some of the channels, a warp 4 x 4 of them.
#include "kernels/cuda/pool2d/tiles.h"
#include "kernels/cuda/pool2d/window.cuh"

namespace contextpool::cuda::maps {
namespace {

template <typename S, int kChannels>
struct ForwardShared {
  Stages<S, kChannels> stages;
  SourceShared<S, kChannels> sources;
  typename Product<S, kChannels>::Shared product;
};

// Targets of the warp once more, source by source: a feature that is not finite must not be multiplied by the weight of
// 0 that it has for others of the patch.
template <typename S, int kChannels>
__device__ void redo_targets(const Map<SumOf<S>>& map, const Block& block, const Features<S>& x, const SumOf<S>* l,
                             const OwnTargets<SumOf<S>>& own, unsigned rows, const SumOf<S> (&factor)[2], S* y) {
  using T = SumOf<S>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int r = 0; r < kCells; ++r) {
    const Target<T> t = own.of(r);
    const T own_factor = of_row(factor[0], factor[1], r);
    const Cell cell(block.patch_row, block.patch_column, r);
    // Where the sum of the weights is NaN, so is all of y, and that has been written.
    if ((rows >> r & 1u) == 0 || !cell.on(map.targets) || isnan(own_factor)) continue;
    const int i = cell.row * map.targets.step_h, j = cell.column * map.targets.step_w, radius = radius_of(t.reach);
    T sums[(kChannels + 31) / 32] = {};
    for (int a = max(0, i - radius); a <= min(map.pixels.rows - 1, i + radius); ++a) {
      for (int b = max(0, j - radius); b <= min(map.pixels.columns - 1, j + radius); ++b) {
        const T di = static_cast<T>(a - i), dj = static_cast<T>(b - j);
        const int pixel = a * map.pixels.columns + b;
        if (l[pixel] == static_cast<T>(-INFINITY)) continue;
        const T w = weight(l[pixel], t, di * di + dj * dj);
        if (w == 0) continue;
#pragma unroll
        for (int n = 0; n < (kChannels + 31) / 32; ++n) {
          if (n * 32 + lane < x.channels) sums[n] += w * Storage<S>::load(x.row(pixel)[n * 32 + lane]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < (kChannels + 31) / 32; ++n) {
      const int c = n * 32 + lane;
      if (c < x.channels) y[cell.index(map.targets) * map.channels + c] = Storage<S>::store(sums[n] * own_factor);
    }
  }
}

template <typename S, int kChannels>
__global__ void __launch_bounds__(kThreads, kResident<S>)
    forward_kernel(Map<SumOf<S>> map, int chunks, const S* x_all, const Target<SumOf<S>>* plan, S* y_all) {
  after_previous();
  using T = SumOf<S>;
  using P = Product<S, kChannels>;
  auto& shared = shared_memory<ForwardShared<S, kChannels>>();
  const Block block(map.targets, chunks);
  const Features<S> x = features_of<S, kChannels>(map, block, map.pixels, x_all);
  const T* l = map.log_weight + block.batch * map.pixels.cells();
  const OwnTargets<T> own(map, block, plan + block.batch * map.targets.cells(), nullptr);
  P product;
  SumIn<S> mass[2] = {};
  const auto use = [&](const Pairs<T>& a, const Pairs<T>& /*falloff*/, const S* rows, int band) {
#pragma unroll
    for (int r = 0; r < 2; ++r) mass[r].add((a.at[r][0] + a.at[r][1]) + (a.at[r][2] + a.at[r][3]));
    product.add(shared.product, a, rows, band);
  };
  over_sources<S, kChannels>(map, block, own, x, nullptr, l, shared.stages, shared.sources, use);
  if (!block.inside) return;
  product.finish();
  T factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const T z = sum_of_row(mass[r].total());
    factor[r] = z == 0 ? T{0} : 1 / z;
  }
  S* y = y_all + (x.first - x_all) + block.batch * (map.targets.cells() - map.pixels.cells()) * map.channels;
  S* to[P::kRows];
  T scale[P::kRows];
#pragma unroll
  for (int r = 0; r < P::kRows; ++r) {
    const Cell cell(block.patch_row, block.patch_column, P::row(r));
    to[r] = cell.on(map.targets) ? y + cell.index(map.targets) * map.channels : nullptr;
    scale[r] = of_row(factor[0], factor[1], P::row(r));
  }
  product.store(to, scale, x.channels, x.aligned);
  const unsigned spoiled = product.spoiled();
  __syncwarp();
  if (spoiled != 0) redo_targets<S, kChannels>(map, block, x, l, own, spoiled, factor, y);
}

}  // namespace

template <typename S>
cudaError_t forward(const Map<SumOf<S>>& map, const S* x, const Target<SumOf<S>>* plan, S* y, cudaStream_t stream) {
  const int chunks = chunks_of<S>(map.channels);
  return with_chunk<S>(map.channels, [&](auto chunk) {
    constexpr int kChannels = decltype(chunk)::value;
    return launch<forward_kernel<S, kChannels>>(blocks_of(map, map.targets, chunks), kThreads,
                                                shared_bytes<ForwardShared<S, kChannels>>(), stream, map, chunks, x,
                                                plan, y);
  });
}

#define CONTEXTPOOL_INSTANTIATE(S) \
  template cudaError_t forward<S>(const Map<SumOf<S>>&, const S*, const Target<SumOf<S>>*, S*, cudaStream_t);
CONTEXTPOOL_INSTANTIATE(double)
CONTEXTPOOL_INSTANTIATE(float)
CONTEXTPOOL_INSTANTIATE(__nv_bfloat16)
CONTEXTPOOL_INSTANTIATE(__half)
#undef CONTEXTPOOL_INSTANTIATE

}  // namespace contextpool::cuda::maps
