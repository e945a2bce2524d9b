// What the kernels of pool2d share: the map as they see it, one record per target, the weight of a source.
//
// A target i weighs a pixel j at distance d <= sqrt(reach_i) with
//   a_ij = 2^((l_j - E_i) log2(e) - d^2 inv_i),   inv_i = log2(e) / (2 sigma_i^2),
// E_i near the largest l_j - d^2 / (2 sigma_i^2), so that the sum of weights can neither overflow nor vanish.
//
// Pixels and targets are worked on by patches of 4 x 4, counted from the corner of the map: a sum over the pixels of a
// target runs over patches in their order whatever else is computed beside it, so that its bits depend on nothing else.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/pool2d/pool2d.h"

namespace contextpool::cuda::maps {

constexpr int kPatch = 4;                // side of a patch,
constexpr int kCells = kPatch * kPatch;  // pixels or targets
constexpr int kSide = 2;                 // patches along a side of a tile: each has a warp of its own
constexpr int kWarps = kSide * kSide, kThreads = 32 * kWarps;
constexpr unsigned kAll = 0xffffffffu;
constexpr double kLog2E = 1.4426950408889634;

// By storage type: the type of sums, conversions, the channels a thread block may work on, and log2 of the part of a
// target's weight that may be left out of its value and of its gradients.
template <typename S>
struct Storage {
  using T = float;
  static constexpr int kMaxChannels = sizeof(S) == 2 ? 128 : 64;
  static constexpr double kDrop = 18, kGradientDrop = 21.5;
  __device__ static T load(S v) { return to_float(v); }
  __device__ static S store(T v) { return from_float<S>(v); }
};
template <>
struct Storage<double> {
  using T = double;
  static constexpr int kMaxChannels = 32;
  static constexpr double kDrop = 43, kGradientDrop = 45;
  __device__ static T load(double v) { return v; }
  __device__ static double store(T v) { return v; }
};
template <typename S>
using SumOf = typename Storage<S>::T;

// Patches brought to shared memory at a time, and thread blocks a multiprocessor has room for.
template <typename S, int kChannels>
constexpr int kStage = sizeof(S) != 2    ? 4
                       : kChannels == 64 ? 8
                                         : 6;
template <typename S>
constexpr int kResident = sizeof(S) == 2 ? 4 : 3;

__device__ inline float exp2_of(float v) { return power_of_two(v); }
__device__ inline double exp2_of(double v) { return exp2(v); }

// Pixels, or the targets among them: cell (a, b) sits at pixel (a step_h, b step_w).
struct Grid {
  int rows, columns, step_h, step_w;
  __host__ __device__ int cells() const { return rows * columns; }
  __host__ __device__ int patch_rows() const { return (rows + kPatch - 1) / kPatch; }
  __host__ __device__ int patch_columns() const { return (columns + kPatch - 1) / kPatch; }
  __host__ __device__ int patches() const { return patch_rows() * patch_columns(); }
  __host__ __device__ int tile_columns() const { return (patch_columns() + kSide - 1) / kSide; }
  __host__ __device__ int tiles() const { return (patch_rows() + kSide - 1) / kSide * tile_columns(); }
  __device__ bool has(int a, int b) const { return a < rows && b < columns; }
};

// Features are [batch, cells, channels].
template <typename T>
struct Map {
  std::int64_t batch;
  std::int64_t channels;
  bool keep_all;  // no source of the support is left out
  bool aligned;   // every row of channels starts at 16 bytes and fills whole pieces of 16 bytes
  Grid pixels, targets;
  const T* log_weight;
  const T* sigma;
};

template <typename T>
struct alignas(4 * sizeof(T)) Target {
  T scale;    // E_i
  T inv;      // 0 where the support is the pixel itself
  T reach;    // the largest d^2 of a source; negative: none exists, or the target has no share
  T inverse;  // 1 / sum of weights (in the backward)
};

template <typename T>
__device__ T weight(T log_weight, const Target<T>& t, T d2) {
  const T e = fma(-d2, t.inv, (log_weight - t.scale) * static_cast<T>(kLog2E));
  return d2 <= t.reach ? exp2_of(e) : T{0};
}

// A patch of targets as the pixels see it.
template <typename T>
struct PatchReach {
  T reach;        // of the farthest
  unsigned live;  // bit k: cell k has a share in the gradients
};

// Pixels top..bottom, left..right.
struct Box {
  int top, bottom, left, right;
  __device__ Box(const Grid& grid, int patch_row, int patch_column, int patches = 1)
      : top(patch_row * kPatch * grid.step_h),
        bottom((min((patch_row + patches) * kPatch, grid.rows) - 1) * grid.step_h),
        left(patch_column * kPatch * grid.step_w),
        right((min((patch_column + patches) * kPatch, grid.columns) - 1) * grid.step_w) {}
};

template <typename T>
__device__ bool within(const Box& a, const Box& b, T reach) {
  const T di = static_cast<T>(max(0, max(a.top - b.bottom, b.top - a.bottom)));
  const T dj = static_cast<T>(max(0, max(a.left - b.right, b.left - a.right)));
  return di * di + dj * dj <= reach;
}

// A sum of many terms. Where it keeps, what is rounded away is summed up beside it.
template <typename T, bool kKeeps>
struct Sum {
  T value, rest;
  __device__ void add(T v) {
    const T sum = value + v;
    if constexpr (kKeeps) {
      const T part = sum - value;
      rest += (value - (sum - part)) + (v - part);
    }
    value = sum;
  }
  // A sum that is not finite has lost the rest.
  __device__ T total() const { return isfinite(rest) ? value + rest : value; }
};

// By storage type: double needs no care, and half types round more away themselves.
template <typename S>
using SumIn = Sum<SumOf<S>, std::is_same_v<S, float>>;

template <typename T>
__device__ T max_of_warp(T v) {
  for (int k = 16; k > 0; k /= 2) v = fmax(v, __shfl_xor_sync(kAll, v, k));
  return v;
}

}  // namespace contextpool::cuda::maps
