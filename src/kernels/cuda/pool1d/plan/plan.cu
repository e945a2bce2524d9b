// Which sources matter to a target: those whose weight is not below 2^-cut of a lower bound of the target's sum.
//
// Blocks of the tree give the bounds. With W_b the weight of block b, and t_near, t_far its distances from the target,
//   W_b 2^-(u t_far)^2  <=  its share of the sum  <=  W_b 2^-(u t_near)^2,
// so no maximum over the sequence is needed and nothing after a causal target is looked at. The level is the highest at
// which every block that matters may be interpolated with 8 nodes within the tolerance.
#include "kernels/cuda/pool1d/plan/plan.h"

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/plan/sort.h"

namespace contextpool::cuda {
namespace {

// Sizes below which the gradient of sigma, a sum of a t^2 (s - c), is made by sources that hardly count in the sum of
// a.
constexpr float kSteep = 1;

constexpr float kSpare = 4;  // bits: a block whose tokens weigh much the same matters by its weight alone

// So many threads plan a target together.
template <int kLanes>
struct Lanes {
  unsigned mask;
  int lane;

  __device__ Lanes() : mask(((1u << kLanes) - 1) << (threadIdx.x % 32 / kLanes * kLanes)), lane(threadIdx.x % kLanes) {}
  __device__ float max(float v) const {
    for (int k = kLanes / 2; k > 0; k /= 2) v = fmaxf(v, __shfl_xor_sync(mask, v, k));
    return v;
  }
  __device__ int max(int v) const {
    for (int k = kLanes / 2; k > 0; k /= 2) v = ::max(v, __shfl_xor_sync(mask, v, k));
    return v;
  }
  // (A vote of a part of a warp takes its parts one after another.)
  __device__ bool any(bool v) const { return max(v ? 1 : 0) != 0; }
};

__device__ float square(float v) { return v * v; }

// Quick ones, for bounds that have room for a millionth.
__device__ float quick_log(float v) { return __log2f(v); }
__device__ float quick_inverse(float v) { return __fdividef(1.f, v); }
__device__ float quick_root(float v) {
  asm("sqrt.approx.f32 %0, %0;" : "+f"(v));
  return v;
}

__device__ float max_or_nan(float a, float b) {
  float v;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}

// Their sum bounds log2 of the error of interpolating exp(-t^2 / 2 sigma^2) with 8 nodes over a block, against its
// largest value there: length and near, the distance of the block, in sigma. Checked for lengths up to 3 and all of the
// support.
__device__ float interpolation_error(float length) { return -22.8f + 8.f * quick_log(length); }
__device__ float interpolation_error_growth(float near) { return 2.3f * fmaxf(0.f, near - 1.f); }

// The level of the tree that a size asks for at most; 0: none.
__device__ int level_of_size(const Problem& in, const Precision& precision, float sigma) {
  const float longest = precision.reach * sigma;
  return longest < static_cast<float>(1 << kLeaf) || sigma < in.least_size ? 0
         : longest >= static_cast<float>(1 << in.tree.last)                ? in.tree.last
                                                                           : ilogbf(longest);
}

template <int kLanes>
struct Planner {
  const Problem& in;
  const Precision& precision;
  const float* quads;              // of the sequence, as in.quad_log
  int batch, position, low, high;  // the support: tokens low .. high
  float own;                       // l log2(e) of the target's own token
  Target& target;
  Lanes<kLanes> lanes;

  __device__ const float* token_logs() const { return in.log_weight + static_cast<std::int64_t>(batch) * in.tokens; }
  __device__ std::int64_t first_block(int level) const {
    return static_cast<std::int64_t>(batch) * in.tree.blocks + in.tree.offset[level - kLeaf];
  }
  __device__ const float* block_logs(int level) const { return in.block_log + first_block(level); }
  __device__ float near_distance(int first, int last) const {
    return static_cast<float>(position < first ? first - position : position > last ? position - last : 0);
  }
  __device__ float far_distance(int first, int last) const {
    return static_cast<float>(max(abs(position - first), abs(position - last)));
  }

  // The tokens in [begin, end) that matter, by bounds over 32 of them at a time; narrow windows one by one.
  __device__ void by_tokens(int begin, int end) {
    target.level = 0;
    target.exponent = 0;
    target.begin = target.end = begin;
    if (begin >= end) return;
    bool single = target.sigma < kSteep;
    if (!single && !by_quads(begin, end, single)) return;
    if (single) by_single_tokens(begin, end);
  }

  // False: nothing matters. Else the target's plan, or (single) where its tokens are to be looked at one by one.
  __device__ bool by_quads(int& begin, int& end, bool& single) {
    const float* l = token_logs();
    const int first = begin / kRows, last = (end - 1) / kRows;
    float least = position >= begin && position < end ? own : minus_infinity(), most = minus_infinity();
    bool bad = false;
    float tail = minus_infinity();  // of the last 32 tokens, which may go on after a causal target
    if (in.causal) {
#pragma unroll
      for (int k = 0; k < kRows; k += kLanes) {
        const int j = last * kRows + k + lanes.lane;
        const float v = j >= begin && j < end ? l[j] * kLog2e : minus_infinity();
        tail = fmaxf(tail, v);
        bad = bad || !(v < __int_as_float(0x7f800000));
      }
      tail = lanes.max(tail);
    } else {
      tail = quads[last];
      bad = isnan(tail);
    }
#pragma unroll 2
    for (int q = first + lanes.lane; q < last; q += kLanes) {
      const float top = quads[q];
      bad = bad || isnan(top);
      const int t0 = q * kRows, t1 = t0 + kRows - 1;
      if (t0 >= begin) least = fmaxf(least, top - square(target.scale * far_distance(t0, t1)));
    }
    least = lanes.max(least);
    single = lanes.any(bad);
    if (single) return true;
    // A window cut inside its first and last 32 tokens may have nothing else: then all are looked at.
    const float margin = precision.cut + quick_log(static_cast<float>(end - begin)), threshold = least - margin;
    const float unit = quick_inverse(target.scale);
    int from = end, to = begin;
#pragma unroll 2
    for (int q = first + lanes.lane; q <= last; q += kLanes) {
      const float top = q == last ? tail : quads[q];
      const int t0 = max(begin, q * kRows), t1 = min(end, q * kRows + kRows) - 1;
      const float bound = top - square(target.scale * near_distance(t0, t1));
      if (!(top > minus_infinity()) || bound < threshold) continue;
      // No token of these that is further away than this matters. (Large exponents have lost the bits of a distance.)
      const float lost = fabsf(top) * 0x1p-22f;
      const float away = ceilf(quick_root((top - least) + margin + lost) * unit * 1.0001f);
      const int reach = static_cast<int>(fminf(away, static_cast<float>(in.tokens)));
      from = min(from, max(t0, position - reach));
      to = max(to, min(t1, position + reach) + 1);
      most = fmaxf(most, bound);
    }
    begin = -lanes.max(-from);
    end = lanes.max(to);
    if (end <= begin) return false;
    single = precision.narrow || target.sigma < static_cast<float>(kRows) / 2 || !(least > minus_infinity());
    target.begin = begin;
    target.end = end;
    target.exponent = ceilf(lanes.max(most));
    return true;
  }

  // log2 of the squared distance of a token.
  __device__ float log_square(float distance) const {
    return 2.f * quick_log(fabsf(distance));
  }  // of its own token: -inf

  __device__ void by_single_tokens(int begin, int end) {
    const float* l = token_logs();
    const auto value = [&](float log_weight, float distance) {
      return fmaf(log_weight, kLog2e, -square(target.scale * distance));
    };
    const bool steep = target.sigma < kSteep;
    float best = minus_infinity(), moment = minus_infinity();
    constexpr int kAhead = 4;  // tokens of a thread on their way at once
    for (int j = begin + lanes.lane; j < end; j += kAhead * kLanes) {
      const auto distance = static_cast<float>(position - j);
      float v[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) v[k] = j + k * kLanes < end ? l[j + k * kLanes] : minus_infinity();
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const float t = distance - static_cast<float>(k * kLanes);
        v[k] = value(v[k], t);
        best = max_or_nan(best, v[k]);
        if (steep) moment = fmaxf(moment, v[k] + log_square(t));
      }
    }
    const bool bad = !(best < __int_as_float(0x7f800000));
    best = lanes.max(best);
    target.begin = begin;
    target.end = end;
    if (lanes.any(bad)) {  // a NaN or +inf among the weights: every sum over it is NaN
      target.exponent = not_a_number();
      return;
    }
    if (!(best > minus_infinity())) {
      target.end = begin;
      return;
    }
    target.exponent = ceilf(best);
    const float margin = precision.cut + quick_log(static_cast<float>(end - begin)), least = best - margin;
    const float least_moment = steep ? lanes.max(moment) - margin : 0.f;
    const auto matters = [&](int j) {
      if (j < begin || j >= end) return false;
      const auto t = static_cast<float>(position - j);
      const float v = value(l[j], t);
      return v >= least || (steep && v > minus_infinity() && v + log_square(t) >= least_moment);
    };
    // From both ends inwards, some at a time, to the first that matters. (The best does, but for rounding.)
    constexpr int kNone = -(1 << 30);
    for (int j = begin, found = kNone; j < end && found == kNone; j += kLanes) {
      found = lanes.max(matters(j + lanes.lane) ? -(j + lanes.lane) : kNone);
      if (found != kNone) target.begin = -found;
    }
    for (int j = end - 1, found = kNone; j >= target.begin && found == kNone; j -= kLanes) {
      found = lanes.max(matters(j - lanes.lane) ? j - lanes.lane : kNone);
      if (found != kNone) target.end = found + 1;
    }
  }

  enum class Verdict { planned, smaller_blocks, tokens };

  // Tries blocks of 2^level tokens; if that makes no plan, what else to try between tokens begin and end.
  __device__ Verdict by_blocks(int level, int& begin, int& end) {
    const float *logs = block_logs(level), *tops = in.block_top + first_block(level);
    const int length = 1 << level, first = low >> level;
    const int last = in.causal ? ((position + 1) >> level) - 1 : high >> level;
    const bool cut_left = low > first << level;
    const bool cut_right = !in.causal && high < in.tokens - 1 && ((high + 1) & (length - 1)) != 0;
    float least = own, most = own;
    bool bad = !(own < __int_as_float(0x7f800000)), bad_edge = false;
    for (int b = first + lanes.lane; b <= last; b += kLanes) {
      if ((b == first && cut_left) || (b == last && cut_right)) {  // the token that is bad may not be a source
        bad_edge = bad_edge || isnan(logs[b]);
        continue;
      }
      bad = bad || isnan(logs[b]);
      least = fmaxf(least, logs[b] - square(target.scale * far_distance(b << level, ((b + 1) << level) - 1)));
    }
    if (in.causal) {
      for (int m = level - 1 - lanes.lane; m >= kLeaf; m -= kLanes) {
        const int b = ((position + 1) >> m) - 1;
        if (!takes_remainder(position, m, b)) continue;
        const float log_weight = block_logs(m)[b];
        bad = bad || isnan(log_weight);
        least = fmaxf(least, log_weight - square(target.scale * far_distance(b << m, ((b + 1) << m) - 1)));
        most = fmaxf(most, ceilf(log_weight) - square(target.scale * near_distance(b << m, ((b + 1) << m) - 1)));
      }
      for (int j = near_begin(position) + lanes.lane; j <= position; j += kLanes) {
        const float v = token_logs()[j] * kLog2e - square(target.scale * static_cast<float>(position - j));
        bad = bad || !(v < __int_as_float(0x7f800000));
        least = fmaxf(least, v);
        most = fmaxf(most, v);
      }
    }
    least = lanes.max(least);
    bad = lanes.any(bad);
    if (!bad && lanes.any(bad_edge)) {
      begin = low;
      end = high + 1;
      return Verdict::tokens;
    }
    if (!bad && !(least > minus_infinity())) {  // whatever is alive lies in the blocks cut by the support
      const bool left = cut_left && first <= last && logs[first] > minus_infinity();
      const bool right = cut_right && first <= last && logs[last] > minus_infinity();
      begin = left ? low : right ? max(low, last << level) : low;
      end = right || (left && in.causal) ? high + 1 : left ? min(high + 1, (first + 1) << level) : low;
      return Verdict::tokens;
    }
    const float threshold = least - precision.cut - quick_log(static_cast<float>(max(1, last - first + 1)));
    const float unit = quick_inverse(target.sigma), error = interpolation_error(static_cast<float>(length) * unit);
    int kept_first = last + 1, kept_last = first - 1;
    bool exact = true;
    for (int b = first + lanes.lane; b <= last; b += kLanes) {
      const int t0 = b << level, t1 = ((b + 1) << level) - 1;
      const float near = near_distance(t0, t1), decay = square(target.scale * near), bound = logs[b] - decay;
      const float heaviest = tops[b] - decay + (static_cast<float>(level) - kSpare);
      if (fmaxf(bound, heaviest) < threshold && !bad) continue;
      kept_first = min(kept_first, b);
      kept_last = max(kept_last, b);
      most = fmaxf(most, ceilf(logs[b]) - decay);
      exact = exact && bound + error + interpolation_error_growth(near * unit) <= least + precision.tolerance;
    }
    kept_first = -lanes.max(-kept_first);
    kept_last = lanes.max(kept_last);
    most = lanes.max(most);
    const bool none = kept_last < kept_first;
    const bool edge = !none && ((cut_left && kept_first == first) || (cut_right && kept_last == last));
    // In a causal plan the blocks of lower levels and the last tokens come after the kept ones, whatever was kept.
    begin = none ? (in.causal ? max(low, (last + 1) << level) : low) : max(low, kept_first << level);
    end = in.causal ? position + 1 : none ? low : min(high + 1, (kept_last + 1) << level);
    if (edge && !bad) return Verdict::tokens;  // the support's edge falls into a block that matters
    if (lanes.any(!exact) && !bad && static_cast<float>(length) * 8 > target.sigma) return Verdict::smaller_blocks;
    target.level = level;
    target.begin = none ? last + 1 : kept_first;
    target.end = none ? last + 1 : kept_last + 1;
    target.exponent = bad ? not_a_number() : ceilf(most);
    return Verdict::planned;
  }

  __device__ void run() {
    int begin = low, end = high + 1;
    if (in.tree.exists() && high > low) {
      int level = level_of_size(in, precision, target.sigma);
      for (; level >= kLeaf; --level) {
        const Verdict verdict = by_blocks(level, begin, end);
        if (verdict == Verdict::planned) return;
        if (verdict == Verdict::tokens) break;
      }
    }
    by_tokens(begin, end);
  }
};

// l log2(e) of a token.
__device__ float token_log(const Problem& in, int batch, int j) {
  return j < in.tokens ? in.log_weight[static_cast<std::int64_t>(batch) * in.tokens + j] * kLog2e : minus_infinity();
}

// Of 32 tokens, one a lane: as in.quad_log.
__device__ float quad_log(float v) {
  const bool bad = __any_sync(0xffffffffu, !(v < __int_as_float(0x7f800000)));
  for (int k = 16; k > 0; k /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, k));
  return bad ? not_a_number() : v;
}

// The largest weight of 32 tokens, and the weight of the smallest blocks: a warp has those of 64 tokens at a time, in
// all the k-th of `blocks` blocks of 64 for k = first, first + step, ...
__device__ void leaf_logs(const Problem& in, int b, int first, int step, int blocks) {
  static_assert(kLeaf == 6 && kRows == 32);
  constexpr int kAhead = 4;  // blocks on their way at once
  const int quads = (in.tokens + kRows - 1) / kRows, lane = threadIdx.x % 32;
  for (int k0 = first; k0 < blocks; k0 += kAhead * step) {
    float v[kAhead][2];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
#pragma unroll
      for (int h = 0; h < 2; ++h) v[k][h] = token_log(in, b, ((k0 + k * step) * 2 + h) * 32 + lane);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int block = k0 + k * step;
      if (block >= blocks) break;
      float most[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[h] = quad_log(v[k][h]);
        const int q = block * 2 + h;
        if (lane == 0 && q < quads) in.quad_log[static_cast<std::int64_t>(b) * quads + q] = most[h];
      }
      if (!in.tree.exists()) continue;
      const bool bad = isnan(most[0]) || isnan(most[1]);
      const float top = fmaxf(most[0], most[1]);
      float total = top > minus_infinity() ? exp2f(v[k][0] - top) + exp2f(v[k][1] - top) : 0.f;
      for (int n = 16; n > 0; n /= 2) total += __shfl_xor_sync(0xffffffffu, total, n);
      if (lane == 0) {
        const std::int64_t to = static_cast<std::int64_t>(b) * in.tree.blocks + block;
        in.block_log[to] = bad ? not_a_number() : top > minus_infinity() ? top + log2f(total) : minus_infinity();
        in.block_top[to] = bad ? not_a_number() : top;
      }
    }
  }
}

// Of long sequences; a warp has 64 tokens. Clears the counts.
__global__ void __launch_bounds__(kThreads)
    token_logs_kernel(const __grid_constant__ Problem in, int blocks, int* counts, std::int64_t count) {
  after_previous();
  for (std::int64_t k = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < count;
       k += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    counts[k] = 0;
  }
  const std::int64_t g = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (g >= static_cast<std::int64_t>(in.batch) * blocks) return;
  leaf_logs(in, static_cast<int>(g / blocks), static_cast<int>(g % blocks), blocks, blocks);
}

__device__ float add_logs(float a, float b) {
  const float high = fmaxf(a, b), low = fminf(a, b);
  if (isnan(a) || isnan(b)) return not_a_number();
  return low == minus_infinity() ? high : high + log2f(1.f + exp2f(low - high));
}

// The weights of larger blocks, level after level, and whether a target may use them; a thread block has a sequence.
// kAlone: nobody has made those of the smallest blocks and cleared the counts.
template <bool kAlone>
__global__ void __launch_bounds__(kLogsThreads)
    block_logs_kernel(const __grid_constant__ Problem in, const __grid_constant__ Precision precision, int* counts,
                      int chunks) {
  after_previous();
  const int b = static_cast<int>(blockIdx.x);
  if constexpr (kAlone) {
    for (int k = threadIdx.x; k < chunks * kClasses; k += kLogsThreads) counts[b * chunks * kClasses + k] = 0;
    leaf_logs(in, b, static_cast<int>(threadIdx.x) / 32, kLogsThreads / 32, in.tree.count(kLeaf));
  }
  const float* sigma = in.sigma + static_cast<std::int64_t>(b) * in.targets;
  bool wide = false;
  for (int m0 = 0; m0 < in.targets && !wide; m0 += 8 * kLogsThreads) {
    float size[8], most = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {  // all on their way at once
      const int m = m0 + k * kLogsThreads + static_cast<int>(threadIdx.x);
      size[k] = m < in.targets ? sigma[m] : 0.f;
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) most = fmaxf(most, size[k]);
    wide = __syncthreads_or(level_of_size(in, precision, most) > 0) != 0;
  }
  if (threadIdx.x == 0) in.wide[b] = wide ? 1 : 0;
  float* logs = in.block_log + static_cast<std::int64_t>(b) * in.tree.blocks;
  float* tops = in.block_top + static_cast<std::int64_t>(b) * in.tree.blocks;
  for (int k = kLeaf + 1; k <= in.tree.last; ++k) {
    const int from = in.tree.offset[k - 1 - kLeaf], to = in.tree.offset[k - kLeaf];
    for (int c = threadIdx.x; c < in.tree.count(k); c += kLogsThreads) {
      const int left = from + 2 * c;
      const bool two = 2 * c + 1 < in.tree.count(k - 1);
      logs[to + c] = add_logs(logs[left], two ? logs[left + 1] : minus_infinity());
      tops[to + c] = max_or_nan(tops[left], two ? tops[left + 1] : minus_infinity());
    }
    __syncthreads();
  }
}

// kAlone: sequences of up to kLongSequence tokens without a tree, whose in.quad_log nobody has made.
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
  const float* quads = in.quad_log + static_cast<std::int64_t>(b) * ((in.tokens + kRows - 1) / kRows);
  if constexpr (kAlone) {
    __shared__ float shared[kLongSequence / kRows];
    for (int q = static_cast<int>(threadIdx.x) / 32; q * kRows < in.tokens; q += kThreads / 32) {
      const float log = quad_log(token_log(in, b, q * kRows + static_cast<int>(threadIdx.x) % 32));
      if (threadIdx.x % 32 == 0) shared[q] = log;
    }
    __syncthreads();
    quads = shared;
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
    Planner<kLanes>{in, precision, quads, b, i, max(0, i - reach), high, own, target, {}}.run();
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

cudaError_t weigh_tokens(const Problem& in, const Precision& precision, int* counts, cudaStream_t stream) {
  if (plans_alone(in)) return cudaSuccess;
  const int chunks = sort_chunks(in.targets);
  if (in.tree.exists() && in.tokens <= kLogsAlone) {
    return launch<block_logs_kernel<true>>(dim3(in.batch), kLogsThreads, 0, stream, in, precision, counts, chunks);
  }
  const int leaves = ((in.tokens - 1) >> kLeaf) + 1;
  const std::int64_t cleared = in.sorted == nullptr ? 0 : static_cast<std::int64_t>(in.batch) * chunks * kClasses;
  const cudaError_t error =
      launch<token_logs_kernel>(blocks_for(static_cast<std::int64_t>(in.batch) * leaves, kThreads / 32), kThreads, 0,
                                stream, in, leaves, counts, cleared);
  if (error != cudaSuccess || !in.tree.exists()) return error;
  return launch<block_logs_kernel<false>>(dim3(in.batch), kLogsThreads, 0, stream, in, precision, counts, chunks);
}

cudaError_t plan_targets(const Problem& in, const Precision& precision, int* counts, cudaStream_t stream) {
  const int chunks = sort_chunks(in.targets);
  const auto blocks = [&](int lanes) { return dim3(blocks_for(in.targets, kThreads / lanes).x * in.batch); };
  return plans_alone(in) ? launch<plan_kernel<kShortLanes, true>>(blocks(kShortLanes), kThreads, 0, stream, in,
                                                                  precision, counts, chunks)
                         : launch<plan_kernel<kLongLanes, false>>(blocks(kLongLanes), kThreads, 0, stream, in,
                                                                  precision, counts, chunks);
}

}  // namespace contextpool::cuda
