// y_i = sum_r a_ir X_r / sum_r a_ir m_r for half types: 64 targets and 256 channels (or at most 64) a thread block.
// Weights are made on the fly, rounded to the storage type (the denominator sums the rounded ones), while the product
// before runs.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/forward.h"
#include "kernels/cuda/pool1d/half/matrix.cuh"

namespace contextpool::cuda {
namespace {

template <typename T, int columns>
struct ForwardShared {
  static constexpr Pipeline kPipe = columns == TileOf<T>::narrow ? kNarrowPipe : kForwardPipe;
  using Product = RowProduct<T, columns>;
  unsigned char rows[kPipe.stages][Product::kStageBytes];  // at the end: the 64 rows of y
  unsigned char weights[2][Product::kWeightBytes];
  float partial[2][kTile];
  TileShared tile;
};

// The weights of target threadIdx.x % 64 for the rows of a stage: two listed pairs of slots (the first is the n-th), of
// which each half of the threads has a slot. kTokens: rows are tokens.
template <typename T, bool kCausal, bool kTokens>
__device__ void weigh_rows(const Tile<kWarpgroup>& tile, int n, int count, unsigned char* weights, float& sum) {
  const Target target = tile.shared.targets[threadIdx.x % kTile];
  const int slot = static_cast<int>(threadIdx.x) / kTile;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int pair = n + k;
    const auto& entry = tile.shared.list[pair];
    const int level = kTokens ? 0 : entry.level;
    const bool remainder = kCausal && !kTokens && level != tile.level;
    // A unit is a token or a block; this is the slot's first.
    const int unit = (entry.group * 2 + slot) * (kTokens ? kSlot : remainder ? 2 : 1);
    const float radius = kTokens ? 1.f : 0.5f * static_cast<float>(1 << level);
    const float distance = static_cast<float>(target.position - (unit << level)) - (kTokens ? 0.f : radius - 0.5f);
    const float start = target.scale * distance, scaled = target.scale * radius;
    const int at = unit - target.begin;
    const auto units = static_cast<unsigned>(n + k < count ? target.end - target.begin : 0);
    bool use = static_cast<unsigned>(at) < units;
    if (remainder) use = n + k < count && target.index >= 0 && takes_remainder(target.position, level, unit);
    const float* exponent = tile.shared.exponent + (pair * 2 + slot) * kSlot;
    const float* mass = tile.shared.mass + (pair * 2 + slot) * kSlot;
    float part = 0;
    __align__(16) Pair<T> weight[kSlot / 2];
#pragma unroll
    for (int r = 0; r < kSlot; r += 4) {
      const float4 e = *reinterpret_cast<const float4*>(exponent + r);
      const float4 m = *reinterpret_cast<const float4*>(mass + r);
      const float exponents[4] = {e.x, e.y, e.z, e.w}, masses[4] = {m.x, m.y, m.z, m.w};
      float w[4];
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const float d = fmaf(-scaled, kTokens ? static_cast<float>(r + q) : kChebyshev[r + q], start);
        w[q] = power_of_two(fmaf(-d, d, exponents[q] - target.exponent));
        const bool used = kTokens ? static_cast<unsigned>(at + r + q) < units : use;
        w[q] = used ? w[q] : 0.f;
      }
#pragma unroll
      for (int q = 0; q < 4; q += 2) {
        const auto two = Pair<T>::of(w[q], w[q + 1]);
        part += kTokens ? two.first() + two.second() : two.first() * masses[q] + two.second() * masses[q + 1];
        weight[(r + q) / 2] = two;
      }
    }
    sum += n + k < count ? part : 0.f;
    *reinterpret_cast<uint4*>(weights + weight_offset(threadIdx.x % kTile, k * 2 + slot)) =
        *reinterpret_cast<const uint4*>(weight);
  }
}

template <typename T, bool kCausal>
__device__ void weigh(const Tile<kWarpgroup>& tile, int stage, int count, unsigned char* weights, float& sum) {
  if (tile.level == 0) {
    weigh_rows<T, kCausal, true>(tile, stage * 2, count, weights, sum);
  } else {
    weigh_rows<T, kCausal, false>(tile, stage * 2, count, weights, sum);
  }
}

// The product of the weights and rows of all sources; shared.partial: the weights' sums, in two parts, of the first and
// of the second slots of pairs (in the list, other targets' pairs stand between those of one: every other pair would
// not always be the same). listed: the groups in the list, where those are all; below 0, before the first time and
// where one list is not enough.
template <typename T, bool kCausal, int columns>
__device__ void accumulate(Tile<kWarpgroup>& tile, ForwardShared<T, columns>& shared, int column, bool mask_non_finite,
                           int& listed, RowProduct<T, columns>& product) {
  constexpr int kStages = ForwardShared<T, columns>::kPipe.stages;
  const Problem& in = tile.in;
  float sum = 0;
  product.clear();  // always: sums of the last channels must not be kept
  const bool known = listed >= 0;
  if (!known) tile.rewind<2>();
#pragma unroll 1
  for (bool first_list = true;; first_list = false) {
    int count = listed;
    using Load = PanelLoader<T, kRows, columns / kPanel>;
    constexpr int kOfPair = 2 * kSlot / Load::kStep;  // of a thread's rows
    static_assert(Load::kStep == kSlot / 2 || Load::kStep == 2 * kSlot);
    const typename Load::To to_rows(shared.rows[0]);
    const auto fetch = [&](int n, int stage) {
      if (2 * n < count) {
        const auto& low = tile.shared.list[2 * n];
        const auto& high = tile.shared.list[min(2 * n + 1, count - 1)];
        const int d = min(column + Load::piece() * 8, in.channels - 8);  // what comes after the last is not written
        const int r = Load::first_row();
        const auto start = [&](const auto& pair) {
          return static_cast<const T*>(pair.first) + r / kSlot * pair.slot + r % kSlot * pair.row + d;
        };
        const T* first[2] = {start(low), start(high)};
        const std::int64_t half[2] = {low.row * (kSlot / 2), high.row * (kSlot / 2)};
        const std::int64_t slot[2] = {low.slot, high.slot};
        const auto row = [&](int k) {
          const int pair = k / kOfPair, in_pair = k % kOfPair;
          return first[pair] + in_pair / 2 * slot[pair] + in_pair % 2 * half[pair];
        };
        const auto to = to_rows.after(stage * RowProduct<T, columns>::kStageBytes);
        if (low.rows + high.rows == kRows) {
          Load::load(to, row);
        } else {
          const int rows[2] = {low.rows - r, high.rows - r};
          Load::load(to, true, row, [&](int k) { return k % kOfPair * Load::kStep < rows[k / kOfPair]; });
        }
      }
      copy_commit();
    };
    const auto begin = [&](int groups) {
      count = groups;
#pragma unroll
      for (int k = 0; k + 1 < kStages; ++k) fetch(k, k);
    };
    if (known) {
      begin(listed);
    } else {
      tile.next_groups<T, 2>(begin);
      listed = first_list ? count : -1;
    }
    const int stages = (count + 1) / 2;
    int stage = 0, next = kStages - 1;
    weigh<T, kCausal>(tile, 0, count, shared.weights[0], sum);
#pragma unroll 1
    for (int n = 0; n < stages; ++n) {
      copy_wait<kStages - 2>();
      publish();
      __syncthreads();
      if (mask_non_finite) add_non_finite(product, shared.weights[n & 1], shared.rows[stage]);
      product.start(shared.weights[n & 1], shared.rows[stage], true);
      fetch(n + kStages - 1, next);
      if (n + 1 < stages) weigh<T, kCausal>(tile, n + 1, count, shared.weights[(n + 1) & 1], sum);
      products_wait();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
    copy_wait<0>();
    if (known || tile.done) break;
  }
  shared.partial[threadIdx.x / kTile][threadIdx.x % kTile] = sum;
  __syncthreads();  // and all rows have been used
}

// y of the tile's targets, channels from `column` on.
template <typename T, bool kCausal, int columns>
__device__ void write_columns(Tile<kWarpgroup>& tile, ForwardShared<T, columns>& shared, Part part, int column,
                              int& listed, T* y, float* near_mass) {
  const Problem& in = tile.in;
  RowProduct<T, columns> product;
  bool mask_non_finite = false;
#pragma unroll 1
  while (true) {
    accumulate<T, kCausal, columns>(tile, shared, column, mask_non_finite, listed, product);
    if (__syncthreads_or(!product.finite()) == 0 || mask_non_finite) break;
    mask_non_finite = true;
  }

  unsigned char* rows = shared.rows[0];
  static_assert(Staged<T, columns>::kBytes <= sizeof(shared.rows));
  T* const to = y + in.result_start(tile.batch, in.targets) + column;
  const auto row_of_y = [&](int k) -> T* {
    const int m = shared.tile.targets[warp_id() * 16 + k].index;
    return m < 0 ? nullptr : to + in.result_at(m);
  };
  float total[2];
#pragma unroll
  for (int t = 0; t < 2; ++t) total[t] = shared.partial[0][matrix_row(t)] + shared.partial[1][matrix_row(t)];
  if (kCausal && part == Part::far && tile.level != 0) {
    each_piece<columns>([&](int k, int c) {
      const T* from = row_of_y(k);
      copy16(Staged<T, columns>::at(rows, warp_id() * 16 + k, c), from + c,
             from != nullptr && column + c < in.channels);
    });
    copy_commit();
    float near[2] = {};
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int m = shared.tile.targets[matrix_row(t)].index;
      if (m >= 0) near[t] = near_mass[static_cast<std::int64_t>(tile.batch) * in.targets + m];
      total[t] += near[t];
    }
    copy_wait<0>();
    __syncwarp();
    with_staged(product, rows, [&](int t, float& v0, float& v1, Pair<T> value) {
      if (near[t] != 0) {
        v0 += near[t] * value.first();
        v1 += near[t] * value.second();
      }
    });
    __syncwarp();
  }
  if (kCausal && part == Part::near && column == 0 && lane_id() % 4 == 0) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int m = shared.tile.targets[matrix_row(t)].index;
      if (m >= 0) near_mass[static_cast<std::int64_t>(tile.batch) * in.targets + m] = total[t];
    }
  }
  const float scale[2] = {total[0] == 0 ? 0.f : 1.f / total[0], total[1] == 0 ? 0.f : 1.f / total[1]};
  stage(product, rows, [&](int t, float v) { return v * scale[t]; });
  write_rows<T, columns>(rows, min(columns, in.channels - column) * static_cast<int>(sizeof(T)), row_of_y);
}

// kCausal: and there is a tree.
template <typename T, bool kCausal, int columns>
__global__ void __launch_bounds__(kWarpgroup, ForwardShared<T, columns>::kPipe.blocks)
    matrix_forward_kernel(const __grid_constant__ Problem in, Part part, T* y, float* near_mass, int across) {
  after_previous();
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<T, columns>*>(memory);
  const WorkIndex work(across);
  Tile<kWarpgroup> tile{in, shared.tile, work.item % in.batch, work.item / in.batch, 0};
  if (!tile.load(part)) return;
  int listed = -1, column = work.part * columns;
  if constexpr (kCausal) {
    write_columns<T, kCausal, columns>(tile, shared, part, column, listed, y, near_mass);
  } else {
#pragma unroll 1
    for (; column < in.channels; column += across * columns) {
      write_columns<T, kCausal, columns>(tile, shared, part, column, listed, y, near_mass);
      __syncthreads();  // the rows have been written
    }
  }
}

template <typename T, int columns>
cudaError_t forward_columns(const Problem& in, Part part, T* y, float* near_mass, cudaStream_t stream) {
  const int tiles = part == Part::near ? (in.targets + kTile - 1) / kTile : in.tiles;
  constexpr int kBytes = shared_bytes<ForwardShared<T, columns>>();
  const bool many = part == Part::all && tiles * in.batch >= kManyTiles;
  const int across = many ? 1 : columns_of<T>(in.channels);
  const dim3 grid(tiles * in.batch * across);
  if (part == Part::all) {
    return launch<matrix_forward_kernel<T, false, columns>>(grid, kWarpgroup, kBytes, stream, in, part, y, near_mass,
                                                            across);
  }
  return launch<matrix_forward_kernel<T, true, columns>>(grid, kWarpgroup, kBytes, stream, in, part, y, near_mass,
                                                         across);
}

}  // namespace

template <typename T>
cudaError_t forward_tiles(const Problem& in, Part part, T* y, float* near_mass, cudaStream_t stream) {
  return in.channels <= TileOf<T>::narrow ? forward_columns<T, TileOf<T>::narrow>(in, part, y, near_mass, stream)
                                          : forward_columns<T, TileOf<T>::columns>(in, part, y, near_mass, stream);
}

template cudaError_t forward_tiles(const Problem&, Part, __nv_bfloat16*, float*, cudaStream_t);
template cudaError_t forward_tiles(const Problem&, Part, __half*, float*, cudaStream_t);

}  // namespace contextpool::cuda
