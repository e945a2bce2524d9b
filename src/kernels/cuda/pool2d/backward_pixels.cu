// The gradients of pool2d by pixel, with p_ij, q_ij and c_i as in backward_targets.cu:
//
//   dx_j = sum_i p_ij dy_i
//   dl_j = sum_i p_ij (q_ij - c_i)
//
// Pixels find patches of targets by how far the farthest target of each sees. Half types sum dl from differences, each
// with the c of the same channels: where a pixel is all that a target sees, q and c are the same number. The others,
// for which q costs as much as dx, take x_j . dx_j - sum_i p_ij c_i. Where thread blocks take some channels each, their
// parts of dl are added up in a fixed order.
#include "kernels/cuda/pool2d/tiles.h"
#include "kernels/cuda/pool2d/window.cuh"

namespace contextpool::cuda::maps {
namespace {

// Whether dl is summed from differences.
template <typename S>
constexpr bool kDifferences = sizeof(S) == 2;

struct Nothing {};

template <typename S, int kChannels>
struct CollectShared {
  using T = SumOf<S>;
  Stages<S, kChannels> stages;
  Target<T> target[2][kStage<S, kChannels>][kCells];
  T mean[2][kStage<S, kChannels>][kCells];
  unsigned live[kWarps];  // whether the warp has a pixel that exists
  std::conditional_t<kDifferences<S>, typename Own<S, kChannels>::Shared, Nothing> own;
  typename Product<S, kChannels>::Shared product;
};

// p_ij of a weight: 0 where that is, even where the sum of the target's weights is NaN.
template <typename T>
__device__ T share_of(T weight, const Target<T>& t) {
  return weight == 0 ? T{0} : weight * t.inverse;
}

// Pixels of the warp once more, target by target: a gradient that is not finite must not be multiplied by the weight of
// 0 that others of the patch have for it. radius: of the farthest that a target sees; mean: of all targets; dl, where
// given: of all pixels.
template <typename S, int kChannels>
__device__ void redo_pixels(const Map<SumOf<S>>& map, const Block& block, const Features<S>& x, const SumOf<S>* origin,
                            const Features<S>& dy, const SumOf<S>* l, const Target<SumOf<S>>* plan, int radius,
                            const SumOf<S>* mean, unsigned rows, S* dx, SumOf<S>* dl) {
  using T = SumOf<S>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int r = 0; r < kCells; ++r) {
    const Cell cell(block.patch_row, block.patch_column, r);
    if ((rows >> r & 1u) == 0 || !cell.on(map.pixels)) continue;
    const T own = l[cell.index(map.pixels)];
    if (own == static_cast<T>(-INFINITY)) continue;
    T sums[(kChannels + 31) / 32] = {}, mean_share = 0;
    const Grid& grid = map.targets;
    const int bottom = min(grid.rows - 1, (cell.row + radius) / grid.step_h);
    const int right = min(grid.columns - 1, (cell.column + radius) / grid.step_w);
    for (int a = max(0, cell.row - radius) / grid.step_h; a <= bottom; ++a) {
      for (int b = max(0, cell.column - radius) / grid.step_w; b <= right; ++b) {
        const int m = a * grid.columns + b;
        const Target<T> t = plan[m];
        if (t.reach < 0) continue;
        const T di = static_cast<T>(cell.row - a * grid.step_h), dj = static_cast<T>(cell.column - b * grid.step_w);
        const T p = share_of(weight(own, t, di * di + dj * dj), t);
        if (p == 0) continue;
        mean_share += p * mean[m];
#pragma unroll
        for (int n = 0; n < (kChannels + 31) / 32; ++n) {
          if (n * 32 + lane < dy.channels) sums[n] += p * Storage<S>::load(dy.row(m)[n * 32 + lane]);
        }
      }
    }
    const int pixel = cell.index(map.pixels);
    T dot = 0;
#pragma unroll
    for (int n = 0; n < (kChannels + 31) / 32; ++n) {
      const int c = n * 32 + lane;
      if (c >= dy.channels) continue;
      dx[pixel * map.channels + c] = Storage<S>::store(sums[n]);
      const T off = origin == nullptr ? T{0} : origin[c];
      if (sums[n] != 0) dot += sums[n] * (Storage<S>::load(x.row(pixel)[c]) - off);
    }
    for (int k = 16; k > 0; k /= 2) dot += __shfl_xor_sync(kAll, dot, k);
    if (dl != nullptr && lane == 0) dl[pixel] = dot - mean_share;
  }
}

// The 4 x 4 pixels of a warp: each lane has two.
template <typename T>
struct OwnPixels {
  T log_weight[2];
  T i[2], j[2];
  bool live;  // whether one of all exists

  __device__ OwnPixels(const Grid& pixels, const Block& block, const T* l) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Cell cell(block.patch_row, block.patch_column, own_row(r));
      log_weight[r] = cell.on(pixels) ? l[cell.index(pixels)] : static_cast<T>(-INFINITY);
      i[r] = static_cast<T>(cell.row);
      j[r] = static_cast<T>(cell.column);
    }
    live = __any_sync(kAll, exists(0) || exists(1)) != 0;
  }
  __device__ bool exists(int r) const { return log_weight[r] != static_cast<T>(-INFINITY); }
};

// use(p, mean, rows, band) for every patch of targets of which one sees one of the warp's pixels.
template <typename S, int kChannels, typename Use>
__device__ void over_targets(const Map<SumOf<S>>& map, const Block& block, const OwnPixels<SumOf<S>>& own,
                             const Features<S>& dy, const Scratch<SumOf<S>>& scratch,
                             CollectShared<S, kChannels>& shared, Use use) {
  using T = SumOf<S>;
  const int thread = static_cast<int>(threadIdx.x), top = block.tile_row * kSide, left = block.tile_column * kSide;
  if (thread % 32 == 0) shared.live[thread / 32] = own.live ? 1 : 0;
  __syncthreads();
  const std::int64_t first = block.batch * map.targets.cells();
  const Target<T>* plan = scratch.plan + first;
  const T* mean = scratch.dot + block.chunk * map.batch * map.targets.cells() + first;
  const PatchReach<T>* reach = scratch.patch + block.batch * map.targets.patches();
  const Range range(map.targets, Box(map.pixels, top, left, kSide), scratch.radius[block.batch]);
  const auto bits = [&](int row, int column) {
    const PatchReach<T> patch = reach[row * map.targets.patch_columns() + column];
    if (patch.live == 0) return 0u;
    const Box box(map.targets, row, column);
    unsigned used = 0;
    for (int w = 0; w < kWarps; ++w) {
      const bool uses =
          shared.live[w] != 0 && within(Box(map.pixels, top + w / kSide, left + w % kSide), box, patch.reach);
      used |= uses ? 1u << w : 0u;
    }
    return used == 0 ? 0u : patch.live | used << kCells;
  };
  const auto prepare = [&](int half, int slot, const Patch& patch) {
    bring<S, kChannels>(shared.stages.row[half][slot], dy, map.targets, patch);
    constexpr int kPieces = sizeof(Target<T>) / 16;
    const int k = thread % 32 / kPieces, piece = thread % 32 % kPieces;
    if (k >= kCells) return;
    if (patch.live(k)) {
      const int m = Cell(patch.row, patch.column, k).index(map.targets);
      copy16(reinterpret_cast<char*>(&shared.target[half][slot][k]) + piece * 16,
             reinterpret_cast<const char*>(plan + m) + piece * 16, true);
      if (piece == 0) copy_one(&shared.mean[half][slot][k], mean + m);
    } else if (piece == 0) {
      shared.target[half][slot][k] = {0, 0, -1, 0};
      shared.mean[half][slot][k] = 0;
    }
  };
  // The lane's first cell in a patch; the others are one column and two rows on.
  const T step_h = static_cast<T>(map.targets.step_h), step_w = static_cast<T>(map.targets.step_w);
  const T near_row = static_cast<T>(other_cell(0) / kPatch) * step_h;
  const T near_column = static_cast<T>(other_cell(0) % kPatch) * step_w;
  const auto arrived = [](int /*half*/, int /*slot*/) {};
  walk<S, kChannels>(shared.stages, range, bits, prepare, arrived, [&](int half, int slot, const Patch& patch) {
    Pairs<T> p;
    T means[4];
    const T top_row = static_cast<T>(patch.row * kPatch) * step_h,
            left_column = static_cast<T>(patch.column * kPatch) * step_w;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const Target<T> t = shared.target[half][slot][other_cell(k)];
      means[k] = shared.mean[half][slot][other_cell(k)];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const T di = top_row + (near_row - own.i[r]) + k / 2 * 2 * step_h;
        const T dj = left_column + (near_column - own.j[r]) + k % 2 * step_w;
        p.at[r][k] = share_of(weight(own.log_weight[r], t, di * di + dj * dj), t);
      }
    }
    use(p, means, &shared.stages.row[half][slot][0][0], patch.band());
  });
}

// Adds up, over the targets that see the warp's pixels, dx in `product` and for each pixel sum_i p_ij (q_ij - c_i);
// where dl is not summed from differences, sum_i p_ij c_i. l: of the map.
template <typename S, int kChannels>
__device__ void collect(const Map<SumOf<S>>& map, const Block& block, const OwnPixels<SumOf<S>>& own,
                        const Features<S>& x, const Features<S>& dy, const SumOf<S>* l,
                        const Scratch<SumOf<S>>& scratch, CollectShared<S, kChannels>& shared,
                        Product<S, kChannels>& product, SumIn<S> (&sums)[2]) {
  using T = SumOf<S>;
  if constexpr (kDifferences<S>) {
    Own<S, kChannels> rows_of_x;
    rows_of_x.load(shared.own, x, [&](int r) {
      const Cell cell(block.patch_row, block.patch_column, r);
      const bool exists = cell.on(map.pixels) && l[cell.index(map.pixels)] != static_cast<T>(-INFINITY);
      return exists ? cell.index(map.pixels) : -1;
    });
    const auto use = [&](const Pairs<T>& p, const T(&mean)[4], const S* rows, int band) {
      const Pairs<T> q = rows_of_x.scores(shared.own, rows);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        T part = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) part += p.at[r][k] == 0 ? T{0} : p.at[r][k] * (q.at[r][k] - mean[k]);
        sums[r].add(part);
      }
      product.add(shared.product, p, rows, band);
    };
    over_targets<S, kChannels>(map, block, own, dy, scratch, shared, use);
  } else {
    const auto use = [&](const Pairs<T>& p, const T(&mean)[4], const S* rows, int band) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        T part = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) part += p.at[r][k] == 0 ? T{0} : p.at[r][k] * mean[k];
        sums[r].add(part);
      }
      product.add(shared.product, p, rows, band);
    };
    over_targets<S, kChannels>(map, block, own, dy, scratch, shared, use);
  }
}

template <typename S, int kChannels>
__global__ void __launch_bounds__(kThreads, 3)
    collect_kernel(Map<SumOf<S>> map, int chunks, const S* x_all, const S* dy_all, Scratch<SumOf<S>> scratch, S* dx_all,
                   SumOf<S>* dlog_weight) {
  after_previous();
  using T = SumOf<S>;
  using P = Product<S, kChannels>;
  auto& shared = shared_memory<CollectShared<S, kChannels>>();
  const Block block(map.pixels, chunks);
  const T* l = map.log_weight + block.batch * map.pixels.cells();
  const Features<S> x = features_of<S, kChannels>(map, block, map.pixels, x_all);
  const Features<S> dy = features_of<S, kChannels>(map, block, map.targets, dy_all);
  const OwnPixels<T> own(map.pixels, block, l);
  P product;
  const std::int64_t first = block.batch * map.pixels.cells();
  T* dl = dlog_weight + block.chunk * map.batch * map.pixels.cells() + first;
  S* dx = dx_all + (x.first - x_all);
  SumIn<S> sums[2] = {};
  collect<S, kChannels>(map, block, own, x, dy, l, scratch, shared, product, sums);
  if (!block.inside) return;
  T total[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = sum_of_row(sums[r].total());
    const Cell cell(block.patch_row, block.patch_column, own_row(r));
    if (!kDifferences<S> || threadIdx.x % 4 != 0 || !cell.on(map.pixels)) continue;
    dl[cell.index(map.pixels)] = own.exists(r) ? total[r] : T{0};
  }
  product.finish();
  const S* from[P::kRows];
  S* to[P::kRows];
  T scale[P::kRows];
#pragma unroll
  for (int r = 0; r < P::kRows; ++r) {
    const Cell cell(block.patch_row, block.patch_column, P::row(r));
    const bool on = cell.on(map.pixels), exists = on && l[cell.index(map.pixels)] != static_cast<T>(-INFINITY);
    from[r] = exists ? x.row(cell.index(map.pixels)) : nullptr;
    to[r] = on ? dx + cell.index(map.pixels) * map.channels : nullptr;
    scale[r] = exists ? 1 : 0;
  }
  if constexpr (!kDifferences<S>) {
    T dot[P::kRows];
    product.dot(from, origin_of<T, kChannels>(map, block, scratch.origin), x.channels, dot);
#pragma unroll
    for (int r = 0; r < P::kRows; ++r) {
      const T own_share = of_row(total[0], total[1], P::row(r));
      const Cell cell(block.patch_row, block.patch_column, P::row(r));
      if (threadIdx.x % 8 != 0 || !cell.on(map.pixels)) continue;
      dl[cell.index(map.pixels)] = from[r] != nullptr ? dot[r] - own_share : T{0};
    }
  }
  product.store(to, scale, x.channels, x.aligned);
  const unsigned spoiled = product.spoiled();
  if (spoiled == 0) return;
  __syncwarp();
  const std::int64_t targets = block.batch * map.targets.cells();
  redo_pixels<S, kChannels>(map, block, x, origin_of<T, kChannels>(map, block, scratch.origin), dy, l,
                            scratch.plan + targets, scratch.radius[block.batch],
                            scratch.dot + block.chunk * map.batch * map.targets.cells() + targets, spoiled, dx,
                            kDifferences<S> ? nullptr : dl);
}

template <typename T>
__global__ void add_chunks_kernel(std::int64_t count, int chunks, const T* parts, T* sum) {
  after_previous();
  const std::int64_t k = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k >= count) return;
  Sum<T, true> total = {};
  for (int chunk = 0; chunk < chunks; ++chunk) total.add(parts[chunk * count + k]);
  sum[k] = total.total();
}

}  // namespace

template <typename S>
cudaError_t backward_pixels(const Map<SumOf<S>>& map, const S* x, const S* dy, const Scratch<SumOf<S>>& scratch, S* dx,
                            SumOf<S>* dlog_weight, cudaStream_t stream) {
  using T = SumOf<S>;
  const int chunks = chunks_of<S>(map.channels);
  T* parts = chunks == 1 ? dlog_weight : scratch.dlog_weight;
  const auto collected = with_chunk<S>(map.channels, [&](auto chunk) {
    constexpr int kChannels = decltype(chunk)::value;
    return launch<collect_kernel<S, kChannels>>(blocks_of(map, map.pixels, chunks), kThreads,
                                                shared_bytes<CollectShared<S, kChannels>>(), stream, map, chunks, x, dy,
                                                scratch, dx, parts);
  });
  if (collected != cudaSuccess || chunks == 1) return collected;
  const std::int64_t pixels = map.batch * map.pixels.cells();
  return launch<add_chunks_kernel<T>>(blocks_for(pixels, kThreads), kThreads, 0, stream, pixels, chunks, parts,
                                      dlog_weight);
}

#define CONTEXTPOOL_INSTANTIATE(S)                                                                                \
  template cudaError_t backward_pixels<S>(const Map<SumOf<S>>&, const S*, const S*, const Scratch<SumOf<S>>&, S*, \
                                          SumOf<S>*, cudaStream_t);
CONTEXTPOOL_INSTANTIATE(double)
CONTEXTPOOL_INSTANTIATE(float)
CONTEXTPOOL_INSTANTIATE(__nv_bfloat16)
CONTEXTPOOL_INSTANTIATE(__half)
#undef CONTEXTPOOL_INSTANTIATE

}  // namespace contextpool::cuda::maps
