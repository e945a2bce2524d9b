// How 64 source rows (tokens, or the nodes of 8 blocks) and 256 channels (or at most 64) gather, in half types, from
// the targets whose sources include them:
//
//   G_r = sum_i p_ir dy_i,   Gm_r = sum_i p_ir c_i,   p_ir = a_ir / Z_i,
//
// 32 targets at a time, weights on the fly, the product on the matrix units. No atomics: the same bits every run.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/gather.cuh"
#include "kernels/cuda/pool1d/half/matrix.cuh"

namespace contextpool::cuda {

// kTokens: source rows are tokens, not nodes of blocks.
template <typename T, bool kTokens, int columns>
struct MatrixGatherShared {
  static constexpr Pipeline kPipe = columns == TileOf<T>::narrow ? kNarrowPipe : kTokens ? kTokensPipe : kBlocksPipe;
  static constexpr int kRing = ring_of(kPipe);
  using Product = RowProduct<T, columns>;
  unsigned char rows[kPipe.stages][Product::kStageBytes];  // at the end of the tokens, from the second on: x, then dx
  unsigned char weights[2][Product::kWeightBytes];
  Weighted targets[kRing][kRows];
  float mass[2][kTile];
  GroupList<kWarpgroup> groups;
  const T* dy;  // of position 0: there may be none so early
};

constexpr int kNoUnit = -(1 << 30);

struct MatrixRow {         // row threadIdx.x % 64
  int unit;                // token, or block; kNoUnit: no live row
  float offset, exponent;  // its position is origin + offset
};

template <typename T, bool kTokens, int columns>
struct MatrixGather {
  using Shared = MatrixGatherShared<T, kTokens, columns>;
  using Product = RowProduct<T, columns>;
  static constexpr int kStages = Shared::kPipe.stages, kRing = Shared::kRing;
  const Problem& in;
  const Backward& out;
  Shared& shared;
  int batch, level, first_unit, end_unit;  // tokens (level 0) or blocks
  int origin;                              // first token of the rows
  MatrixRow row;
  int column;         // first channel
  int part, parts;    // of the targets that cover the rows
  bool add_ = false;  // the sums hold something

  using Load = PanelLoader<T, kRows, columns / kPanel>;

  // Adds groups of 32 targets: half tiles begin .. end, or (near) groups of targets as they come.
  template <Use kUse>
  __device__ void add(int begin, int end, bool mask_non_finite, Product& product, float& mass) {
    over_groups<kWarpgroup>({in, out, kUse, batch, level, first_unit, end_unit}, begin, end, part, parts, shared.groups,
                            [&](int count) { process<kUse>(count, mask_non_finite, product, mass); });
  }

  template <Use kUse>
  __device__ void process(int count, bool mask_non_finite, Product& product, float& mass) {
    for (int n = 0; n < kRing; ++n) fetch_targets<kUse>(n, count);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k + 1 < kStages; ++k) fetch_rows<kUse>(k, count, k);
    int stage = 0, next = kStages - 1;
    weigh<kUse>(0, mass);
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
      copy_wait<kStages - 2>();  // rows n and the targets of the rows asked for below are here
      publish();
      __syncthreads();
      if (mask_non_finite) add_non_finite(product, shared.weights[n & 1], shared.rows[stage]);
      product.start(shared.weights[n & 1], shared.rows[stage], add_);
      add_ = true;
      fetch_targets<kUse>(n + kRing, count);
      fetch_rows<kUse>(n + kStages - 1, count, next);
      if (n + 1 < count) weigh<kUse>(n + 1, mass);
      products_wait();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
    copy_wait<0>();
  }

  template <Use kUse>
  __device__ void fetch_targets(int n, int count) {
    if (n < count && threadIdx.x < kRows * 2) {
      const int k = shared.groups.list[n] * kRows + threadIdx.x / 2;
      const bool here = kUse != Use::near || k < in.targets;
      const Weighted* from = kUse == Use::near
                                 ? out.by_target + static_cast<std::int64_t>(batch) * in.targets + (here ? k : 0)
                                 : out.by_tile + static_cast<std::int64_t>(batch) * in.tiles * kTile + k;
      auto* to = reinterpret_cast<unsigned char*>(&shared.targets[n % kRing][threadIdx.x / 2]);
      copy16(to + threadIdx.x % 2 * 16, reinterpret_cast<const unsigned char*>(from) + threadIdx.x % 2 * 16, here);
    }
  }

  template <Use kUse>
  __device__ void fetch_rows(int n, int count, int stage) {
    if (n < count) {
      const Weighted* targets = shared.targets[n % kRing] + Load::first_row();
      // What comes after the last channel is not written.
      const int d = min(column + Load::piece() * 8, in.channels - 8);
      const int shift = in.first_position();
      const T* dy = shared.dy + d;
      const auto to = typename Load::To(shared.rows[0]).after(stage * Product::kStageBytes);
      int position[Load::kCount], least = 0x7fffffff;
#pragma unroll
      for (int k = 0; k < Load::kCount; ++k) {
        position[k] = targets[k * Load::kStep].position;
        least = min(least, position[k]);
      }
      const auto row = [&](int k) { return dy + in.result_at(position[k]); };
      if (least >= shift) {
        Load::load(to, row);
      } else {  // some of these targets are padding
        Load::load(to, true, row, [&](int k) { return position[k] >= shift; });
      }
    }
    copy_commit();
  }

  // 16 targets' weights for this thread's row.
  template <Use kUse>
  __device__ void weigh(int n, float& mass) {
    const int half = static_cast<int>(threadIdx.x) / kTile;
    const Weighted* targets = shared.targets[n % kRing] + half * 2 * kSlot;
#pragma unroll
    for (int slot = 0; slot < 2; ++slot) {
      __align__(16) Pair<T> weight[kSlot / 2];
#pragma unroll
      for (int r = 0; r < kSlot; r += 2) {
        float w[2], c[2];
        bool uses[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const Weighted t = targets[slot * kSlot + r + k];
          const float d = t.scale * (static_cast<float>(t.position - origin) - row.offset);
          w[k] = power_of_two(fmaf(-d, d, row.exponent - t.exponent));
          c[k] = t.c;
          uses[k] = static_cast<unsigned>(row.unit - t.begin) < static_cast<unsigned>(t.count);
          if (kUse == Use::remainder) uses[k] = takes_remainder(t.position, level, row.unit);
          if (kUse == Use::near) uses[k] = t.level > 0 && row.unit >= near_begin(t.position) && row.unit <= t.position;
        }
        const auto pair = Pair<T>::of(uses[0] ? w[0] : 0.f, uses[1] ? w[1] : 0.f);
        if (uses[0]) mass = fmaf(pair.first(), c[0], mass);
        if (uses[1]) mass = fmaf(pair.second(), c[1], mass);
        weight[r / 2] = pair;
      }
      *reinterpret_cast<uint4*>(shared.weights[n & 1] + weight_offset(threadIdx.x % kTile, half * 2 + slot)) =
          *reinterpret_cast<const uint4*>(weight);
    }
  }

  // Everything of the 64 rows; shared.mass: the two parts of each row's mass.
  template <bool kCausal>
  __device__ void run(Product& product) {
    bool mask_non_finite = false;
    if (threadIdx.x == 0) {  // in shared memory: registers are scarce
      shared.dy =
          static_cast<const T*>(out.dy) + in.result_start(batch, in.targets) - in.result_at(in.first_position());
    }
#pragma unroll 1
    while (true) {
      add_ = mask_non_finite;
      if (mask_non_finite) product.clear();
      float mass = 0;
      int own_begin = 0, own_end = in.tiles, end = in.tiles;
      if (in.sorted != nullptr) {
        const int* starts = in.class_tile + batch * (kClasses + 1);
        own_begin = starts[class_of_level(level)];
        own_end = starts[class_of_level(level) + 1];
        end = starts[kClasses];
      }
      add<Use::own>(2 * own_begin, 2 * own_end, mask_non_finite, product, mass);
      if constexpr (kTokens && kCausal) {  // those in this block of 64
        const int shift = in.first_position();
        add<Use::near>(max(0, first_unit - shift) / kRows,
                       (min(in.targets, max(0, end_unit - shift)) + kRows - 1) / kRows, mask_non_finite, product, mass);
      }
      if constexpr (!kTokens && kCausal) add<Use::remainder>(2 * own_end, 2 * end, mask_non_finite, product, mass);
      if (!add_) product.clear();
      shared.mass[threadIdx.x / kTile][threadIdx.x % kTile] = mass;
      if (__syncthreads_or(!product.finite()) == 0 || mask_non_finite) break;
      mask_non_finite = true;
    }
  }
};

}  // namespace contextpool::cuda
