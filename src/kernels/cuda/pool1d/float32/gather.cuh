// How 64 source rows (tokens, or the nodes of 8 blocks) and 128 channels gather, in float32, from the targets whose
// sources include them:
//
//   G_r = sum_i p_ir dy_i,   Gm_r = sum_i p_ir c_i,   Gw_r = sum_i p_ir,   p_ir = a_ir / Z_i,
//
// 32 targets at a time, weights on the fly. No atomics: the same bits every run.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/float32/product.cuh"
#include "kernels/cuda/pool1d/gather.cuh"

namespace contextpool::cuda {

constexpr int kGatherStages = kPlainPipe.stages, kGatherRing = ring_of(kPlainPipe);

template <typename T>
struct GatherShared {
  T a[2][kTile * Product<T>::kA];
  T b[kGatherStages]
     [kRows * Product<T>::kB];  // at the end of the tokens, the first two as one: 64 rows of x, then of dx
  union {
    Weighted targets[kGatherRing][kRows];
    float2 mass[kRows / kSlot][kTile];  // at the end: shares of Gm and Gw
  };
  float leaf[kTile][kNodes];
  float dot[kTile][17];
  GroupList<kThreads> groups;
};

struct Row {  // one of the 64; position base + offset
  int unit;   // token, or block
  int base;
  float offset, exponent, rest;
  bool live;
};

template <typename T>
struct Gather {
  const Problem& in;
  const Backward& out;
  GatherShared<T>& shared;
  int batch, level, first_unit, end_unit;  // tokens (level 0) or blocks
  Row row;
  int part, parts;  // of the targets that cover the rows

  using Load = Loader<T, kRows, Product<T>::kColumns>;
  Load loader{in};
  const T* dy = static_cast<const T*>(out.dy) + in.result_start(batch, in.targets);
  const Weighted* by_tile = out.by_tile + static_cast<std::int64_t>(batch) * in.tiles * kTile;

  // Adds groups of 32 targets: half tiles begin .. end, or (near) groups of targets as they come.
  template <bool kSkipZeros>
  __device__ void add(Use use, int begin, int end, Product<T>& product, float2& mass) {
    over_groups<kThreads>({in, out, use, batch, level, first_unit, end_unit}, begin, end, part, parts, shared.groups,
                          [&](int count) { process<kSkipZeros>(use, count, product, mass); });
  }

  template <bool kSkipZeros>
  __device__ void process(Use use, int count, Product<T>& product, float2& mass) {
    for (int n = 0; n < kGatherRing; ++n) fetch_targets(use, n, count);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    for (int k = 0; k + 1 < kGatherStages; ++k) fetch_rows(use == Use::near, k, count, k);
    int stage = 0, next = kGatherStages - 1;
    weigh(use, 0, mass);
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
      copy_wait<kGatherStages - 2>();  // rows n and the targets of the rows asked for below are here
      __syncthreads();
      fetch_targets(use, n + kGatherRing, count);
      fetch_rows(use == Use::near, n + kGatherStages - 1, count, next);
      if (n + 1 < count) weigh(use, n + 1, mass);
      if constexpr (kSkipZeros) {
        step_skipping_zeros(product, shared.a[n & 1], shared.b[stage]);
      } else {
        product.step(shared.a[n & 1], shared.b[stage]);
      }
      stage = stage + 1 == kGatherStages ? 0 : stage + 1;
      next = next + 1 == kGatherStages ? 0 : next + 1;
    }
    copy_wait<0>();
  }

  __device__ std::int64_t sequence() const { return static_cast<std::int64_t>(batch) * in.targets; }

  __device__ void fetch_targets(Use use, int n, int count) {
    if (n < count && threadIdx.x < kRows * 2) {
      const int group = shared.groups.list[n], k = threadIdx.x / 2;
      const Weighted* from = by_tile + static_cast<std::int64_t>(group) * kRows;
      bool here = true;
      if (use == Use::near) {
        here = group * kRows + k < in.targets;
        from = out.by_target + sequence() + (here ? group * kRows : -k);
      }
      auto* to = reinterpret_cast<unsigned char*>(&shared.targets[n % kGatherRing][k]) + threadIdx.x % 2 * 16;
      copy16(to, reinterpret_cast<const unsigned char*>(from + k) + threadIdx.x % 2 * 16, here);
    }
  }

  __device__ void fetch_rows(bool near, int n, int count, int stage) {
    if (n < count) {
      const Weighted* targets = shared.targets[n % kGatherRing] + Load::first_row();
      loader.load(shared.b[stage], Product<T>::kB, blockIdx.y * Product<T>::kColumns, [&](int k) {
        const Weighted& t = targets[k * Load::kStep];
        return RowAt<T>{dy + in.result_at(t.position - in.first_position()), t.position >= 0 && (!near || t.level > 0)};
      });
    }
    copy_commit();
  }

  __device__ void weigh(Use use, int n, float2& mass) {
    if (use == Use::own) {
      weigh_as<Use::own>(n, mass);
    } else if (use == Use::near) {
      weigh_as<Use::near>(n, mass);
    } else {
      weigh_as<Use::remainder>(n, mass);
    }
  }

  template <Use kUse>
  __device__ void weigh_as(int n, float2& mass) {
    const int slot = threadIdx.x >> 6;
    const Weighted* targets = shared.targets[n % kGatherRing] + slot * kSlot;
    __align__(16) Pair<T> weight[kSlot / 2];
    float w[2], c[2], part = 0, sum = 0;
#pragma unroll
    for (int k = 0; k < kSlot; ++k) {
      const Weighted t = targets[k];
      bool uses = row.unit >= t.begin && row.unit < t.begin + t.count;
      if (kUse == Use::remainder) uses = takes_remainder(t.position, level, row.unit);
      if (kUse == Use::near) uses = t.level > 0 && row.unit >= near_begin(t.position) && row.unit <= t.position;
      const float d = t.scale * (static_cast<float>(t.position - row.base) - row.offset);
      const float p = t.scale == 0 ? 1.f + 0.f * t.exponent
                                   : power_of_two((row.exponent - t.exponent) + (row.rest - t.rest) - d * d);
      w[k % 2] = uses && row.live ? p : 0.f;
      c[k % 2] = t.c;
      if (k % 2 == 1) {
        weight[k / 2] = Pair<T>::of(w[0], w[1]);
        const float w0 = weight[k / 2].first(), w1 = weight[k / 2].second();
        part += w0 == 0 ? 0.f : w0 * c[0];
        part += w1 == 0 ? 0.f : w1 * c[1];
        sum += w0 + w1;
      }
    }
    mass.x += part;
    mass.y += sum;
    T* a = shared.a[n & 1] + (threadIdx.x & 63) * Product<T>::kA + slot * kSlot;
#pragma unroll
    for (int k = 0; k < static_cast<int>(kSlot * sizeof(T) / 16); ++k) {
      reinterpret_cast<uint4*>(a)[k] = reinterpret_cast<const uint4*>(weight)[k];
    }
  }

  template <bool kSkipZeros>
  __device__ float2 all(Product<T>& product) {
    float2 mass = make_float2(0, 0);  // Gm, Gw
    int own_begin = 0, own_end = in.tiles, end = in.tiles;
    if (in.sorted != nullptr) {
      const int* starts = in.class_tile + batch * (kClasses + 1);
      own_begin = starts[class_of_level(level)];
      own_end = starts[class_of_level(level) + 1];
      end = starts[kClasses];
    }
    const bool near = level == 0 && out.by_target != nullptr;
    const int shift = in.first_position();
    const int uses = near || (level > 0 && in.causal) ? 2 : 1;
#pragma unroll 1
    for (int k = 0; k < uses; ++k) {
      const Use use = k == 0 ? Use::own : near ? Use::near : Use::remainder;
      int from = 2 * own_begin, to = 2 * own_end;
      if (use == Use::remainder) {
        from = 2 * own_end;
        to = 2 * end;
      } else if (use == Use::near) {  // those in this block of 64
        from = max(0, first_unit - shift) / kRows;
        to = (min(in.targets, max(0, end_unit - shift)) + kRows - 1) / kRows;
      }
      add<kSkipZeros>(use, from, to, product, mass);
    }
    return mass;
  }

  // Not inlined, and given copies: it must not cost the ordinary path registers.
  __device__ static __noinline__ float2 all_skipping_zeros(Gather gather, Product<T>* product) {
    *product = Product<T>();
    return gather.template all<true>(*product);
  }

  // Everything of the 64 rows; this thread's share of its row's mass is left in shared.mass.
  __device__ void run(Product<T>& product) {
    float2 mass = all<false>(product);
    if (__syncthreads_or(!all_finite(product))) {
      Product<T> redone;
      mass = all_skipping_zeros(*this, &redone);
      product = redone;
    }
    shared.mass[threadIdx.x >> 6][threadIdx.x & 63] = mass;
    __syncthreads();
  }
};

}  // namespace contextpool::cuda
