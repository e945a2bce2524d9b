// How far each target of pool2d looks.
//
// By definition a target has the sources with d^2 <= 160 sigma^2. Most of them do not matter, and its disc may end
// earlier, at d^2 = reach, if what lies outside is below 2^-kDrop of the normaliser Z (and, where the gradient of sigma
// is wanted, of the second moment V = sum a d^2). With U the largest log weight of the map, h = 1 / (2 sigma^2):
//   - A source outside weighs at most e^(U - d^2 h). With n lattice points in a disc of radius R between
//     pi (R -+ sqrt(1/2))^2, partial summation bounds the sum of e^(-(d^2 - reach) h) over those outside by
//     pi (2 sigma^2 + 2 sqrt(2) R + sqrt(2) sigma^2 / R): see crowd(). So reach h >= U + kDrop + ln crowd - ln Z is
//     enough.
//   - For V the same, with ln d^2 below its tangent at d^2 = 40 sigma^2, which costs a twentieth of the fall-off.
// Any one source is a lower bound of Z and V: the nearest ones give a first disc, on which Z and V are then summed, and
// with them what lies outside of smaller discs, so that those can be taken without any bound.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool2d/tiles.h"

namespace contextpool::cuda::maps {
namespace {

// top[b]: the largest log weight of a map; inf if one is NaN.
template <typename T>
__global__ void top_kernel(const T* log_weight, int pixels, T* top) {
  after_previous();
  __shared__ T shared[32];
  const T* l = log_weight + static_cast<std::int64_t>(blockIdx.x) * pixels;
  T most = -INFINITY;
  for (int j = static_cast<int>(threadIdx.x); j < pixels; j += static_cast<int>(blockDim.x)) {
    most = fmax(most, isnan(l[j]) ? static_cast<T>(INFINITY) : l[j]);
  }
  most = max_of_warp(most);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  most = max_of_warp(threadIdx.x < blockDim.x / 32 ? shared[threadIdx.x] : static_cast<T>(-INFINITY));
  if (threadIdx.x == 0) top[blockIdx.x] = most;
}

// Eight lanes look at a target: a warp costs as much for four small windows as for one.
constexpr int kLanes = 8;
__device__ inline unsigned own_lanes() { return 0xffu << threadIdx.x % 32 / kLanes * kLanes; }

template <typename T>
__device__ T largest_of(T v) {
  for (int k = kLanes / 2; k > 0; k /= 2) v = fmax(v, __shfl_xor_sync(own_lanes(), v, k));
  return v;
}
template <typename T>
__device__ T sum_of(T v) {
  for (int k = kLanes / 2; k > 0; k /= 2) v += __shfl_xor_sync(own_lanes(), v, k);
  return v;
}

// One target.
template <typename T>
struct Planner {
  const Grid& pixels;
  const T* l;
  int i, j;
  T half;  // h
  T sigma2;
  T support;

  __device__ Planner(const Grid& pixels, const T* l, int i, int j, double sigma) : pixels(pixels), l(l), i(i), j(j) {
    const double height = pixels.rows - 1, width = pixels.columns - 1, all = height * height + width * width;
    const double square = sigma > 0 ? 160 * sigma * sigma : isnan(sigma) ? all : 0;
    support = static_cast<T>(square < all ? floor(square) : all);
    sigma2 = support > 0 ? static_cast<T>(sigma * sigma) : T{0};
    half = support > 0 ? static_cast<T>(1 / (2 * sigma * sigma)) : T{0};
  }

  // body(l_j, d^2) for every live pixel with d^2 <= reach, dealt out to the lanes.
  template <typename Body>
  __device__ void visit(T reach, Body body) const {
    constexpr int kRows = 2, kColumns = kLanes / kRows;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const int radius = static_cast<int>(fmin(ceil(sqrt(reach)), static_cast<T>(kMaxSide)));
    const int bottom = min(pixels.rows - 1, i + radius), right = min(pixels.columns - 1, j + radius);
    for (int a = max(0, i - radius) + lane / kColumns; a <= bottom; a += kRows) {
      const T di = static_cast<T>(a - i);
      for (int b = max(0, j - radius) + lane % kColumns; b <= right; b += kColumns) {
        const T dj = static_cast<T>(b - j), d2 = di * di + dj * dj;
        if (d2 > reach) continue;
        const T own = l[static_cast<std::int64_t>(a) * pixels.columns + b];
        if (own != static_cast<T>(-INFINITY)) body(own, d2);
      }
    }
  }

  // ln of (the weights outside a disc, over the weight at its rim).
  __device__ T crowd() const { return log(fmin(static_cast<T>(pixels.cells()), 12 * sigma2 + 9 * sqrt(support) + 4)); }
  // ln of d^2 at most: tangent() + d^2 h / 20.
  static constexpr T kSlope = T{0.95};
  __device__ T tangent() const { return log(40 * sigma2) - 1; }

  // The support, or less where `bound` is less. A NaN bound cuts nothing.
  __device__ T cut(T bound) const { return bound < support ? fmax(bound, T{1}) : support; }

  // Sets scale and reach of the target and how far its second moment goes; the support is what is kept without cuts.
  __device__ void look(bool cuts, T drop, T top, bool moment, Target<T>& t, T& far) const {
    constexpr T kFirstDiscMargin = 2;  // a first disc leaves out e^-2 of what may be left out
    constexpr T kSafe = 40;            // weights up to e^40 can be summed up
    constexpr T kNear = 2;             // d^2 of the nearest
    // Of a sum e^(z + more). Log weights may be large, and differ by little: they meet each other first.
    const T room = drop + kFirstDiscMargin + crowd();
    const auto by_weight = [&](T z, T more) { return cut(((top - z) + (room - more)) / half); };
    const auto by_moment = [&](T v, T more) { return cut(((top - v) + (room + tangent() - more)) / (kSlope * half)); };
    T z = -INFINITY, v = -INFINITY;
    visit(fmin(kNear, support), [&](T l, T d2) {
      z = fmax(z, l - d2 * half);
      if (d2 > 0) v = fmax(v, l - d2 * half + log(d2));
    });
    z = largest_of(z);
    if (cuts) t.reach = far = moment ? fmax(by_weight(z, 0), by_moment(largest_of(v), 0)) : by_weight(z, 0);
    if (!cuts || !(top - z < kSafe)) {
      if (!largest(t.reach, z)) far = t.reach = -1;
    }
    t.scale = z;
    if (!cuts || t.reach < 0 || isnan(z)) return;
    // What lies outside of two discs of each kind; in most maps one of them is enough.
    const T disc[2] = {(drop + T{0.5}) / half, (drop + T{2.5}) / half};
    const T far_disc[2] = {(drop + 3) / half, (drop + 5) / half};
    T most = z, sum = 0, square = 0, outside[2] = {}, far_outside[2] = {};
    visit(t.reach, [&](T l, T d2) {
      const T a = weight(l, t, d2), second = a * d2;
      most = fmax(most, l - d2 * half);
      sum += a;
      square += second;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        outside[k] += d2 > disc[k] ? a : T{0};
        far_outside[k] += d2 > far_disc[k] ? second : T{0};
      }
    });
    sum = sum_of(sum);
    const T allowed = T{0.8} * exp(-drop);
    T reach = by_weight(z, log(sum));
    for (int k = 1; k >= 0; --k) reach = sum_of(outside[k]) <= allowed * sum ? fmin(reach, cut(disc[k])) : reach;
    t.reach = fmin(t.reach, reach);
    t.scale = largest_of(most);
    if (!moment) return;
    square = sum_of(square);
    T outer = by_moment(z, log(square));
    for (int k = 1; k >= 0; --k) {
      outer = sum_of(far_outside[k]) <= allowed * square ? fmin(outer, cut(far_disc[k])) : outer;
    }
    far = fmin(far, fmax(reach, outer));
  }

 private:
  // z = the largest l_j - d^2 h of the disc; NaN if a log weight is none or infinite. False: no source exists.
  __device__ bool largest(T reach, T& z) const {
    bool bad = false;
    T most = -INFINITY;
    visit(reach, [&](T l, T d2) {
      bad = bad || isnan(l) || l == static_cast<T>(INFINITY);
      most = fmax(most, l - d2 * half);
    });
    z = largest_of(most);
    if (__any_sync(own_lanes(), bad) != 0) z = NAN;
    return z != static_cast<T>(-INFINITY);
  }
};

// moment_reach, where given: as far as the gradient of sigma needs.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    plan_kernel(Map<T> map, T drop, const T* top, Target<T>* plan, T* moment_reach) {
  after_previous();
  const std::int64_t m = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int targets = map.targets.cells();
  if (m >= map.batch * targets) return;
  const std::int64_t b = m / targets;
  const int cell = static_cast<int>(m % targets);
  const double sigma = static_cast<double>(map.sigma[m]);
  const Planner<T> planner(map.pixels, map.log_weight + b * map.pixels.cells(),
                           cell / map.targets.columns * map.targets.step_h,
                           cell % map.targets.columns * map.targets.step_w, sigma);
  const double inv = isnan(sigma) ? sigma : planner.support > 0 ? kLog2E / (2 * sigma * sigma) : 0;
  Target<T> t = {0, static_cast<T>(inv), planner.support, 0};
  T far = planner.support;
  if (!isnan(sigma)) planner.look(!map.keep_all && t.inv > 0, drop, top[b], moment_reach != nullptr, t, far);
  if (threadIdx.x % kLanes != 0) return;
  plan[m] = t;
  if (moment_reach != nullptr) moment_reach[m] = far;
}

}  // namespace

template <typename S>
cudaError_t plan(const Map<SumOf<S>>& map, SumOf<S>* top, Target<SumOf<S>>* plan, SumOf<S>* moment_reach,
                 cudaStream_t stream) {
  using T = SumOf<S>;
  constexpr int kTopThreads = 512;
  const cudaError_t error =
      launch<top_kernel<T>>(blocks_for(map.batch, 1), kTopThreads, 0, stream, map.log_weight, map.pixels.cells(), top);
  if (error != cudaSuccess) return error;
  constexpr std::int64_t kTargets = kThreads / kLanes;  // of a thread block
  const auto drop = static_cast<T>((moment_reach == nullptr ? Storage<S>::kDrop : Storage<S>::kGradientDrop) / kLog2E);
  return launch<plan_kernel<T>>(blocks_for(map.batch * map.targets.cells(), kTargets), kThreads, 0, stream, map, drop,
                                top, plan, moment_reach);
}

#define CONTEXTPOOL_INSTANTIATE(S) \
  template cudaError_t plan<S>(const Map<SumOf<S>>&, SumOf<S>*, Target<SumOf<S>>*, SumOf<S>*, cudaStream_t);
CONTEXTPOOL_INSTANTIATE(double)
CONTEXTPOOL_INSTANTIATE(float)
CONTEXTPOOL_INSTANTIATE(__nv_bfloat16)
CONTEXTPOOL_INSTANTIATE(__half)
#undef CONTEXTPOOL_INSTANTIATE

}  // namespace contextpool::cuda::maps
