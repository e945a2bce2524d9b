// Which sources matter to a target: those whose weight is not below 2^-cut of a lower bound of the target's sum.
//
// Blocks of the tree give the bounds. With W_b the weight of block b, and t_near, t_far its distances from the target,
//
//   W_b 2^-(u t_far)^2  <=  its share of the sum  <=  W_b 2^-(u t_near)^2,
//
// so no maximum over the sequence is needed and nothing after a causal target is looked at. The level is the highest at
// which every block that matters may be interpolated with 8 nodes within the tolerance.
#pragma once

#include "kernels/cuda/pool1d/plan/bounds.cuh"

namespace contextpool::cuda {

// Sizes below which the gradient of sigma, a sum of a t^2 (s - c), is made by sources that hardly count in the sum of
// a.
constexpr float kSteep = 1;

// In bits: a block is kept for its heaviest token only where that weighs much more than the others.
constexpr float kLevelSlack = 4;

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

// Their sum bounds log2 of the error of interpolating exp(-t^2 / 2 sigma^2) with 8 nodes over a block, against its
// largest value there: length and near, the distance of the block, in sigma. Checked for lengths up to 3 and all of the
// support.
__device__ inline float interpolation_error(float length) { return -22.8f + 8.f * quick_log(length); }
__device__ inline float interpolation_error_growth(float near) { return 2.3f * fmaxf(0.f, near - 1.f); }

template <int kLanes>
struct Planner {
  const Problem& in;
  const Precision& precision;
  const float* group_maxima;       // of the sequence, as in.group_max
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
    if (!single && !by_groups(begin, end, single)) return;
    if (single) by_single_tokens(begin, end);
  }

  // False: nothing matters. Else the target's plan, or (single) where its tokens are to be looked at one by one.
  __device__ bool by_groups(int& begin, int& end, bool& single) {
    const float* l = token_logs();
    const int first = begin / kRows, last = (end - 1) / kRows;
    float least = position >= begin && position < end ? own : minus_infinity(), most = minus_infinity();
    bool bad = false;
    float tail = minus_infinity();  // of the last 32 tokens, which may continue after a causal target
    if (in.causal) {
#pragma unroll
      for (int k = 0; k < kRows; k += kLanes) {
        const int j = last * kRows + k + lanes.lane;
        const float v = j >= begin && j < end ? l[j] * kLog2e : minus_infinity();
        tail = fmaxf(tail, v);
        bad = bad || nan_or_plus_infinity(v);
      }
      tail = lanes.max(tail);
    } else {
      tail = group_maxima[last];
      bad = isnan(tail);
    }
#pragma unroll 2
    for (int q = first + lanes.lane; q < last; q += kLanes) {
      const float top = group_maxima[q];
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
      const float top = q == last ? tail : group_maxima[q];
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
    const bool bad = nan_or_plus_infinity(best);
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

  // The blocks of 2^level tokens that the support touches, first .. last, and whether it cuts the outer ones.
  struct Blocks {
    int level, first, last;
    bool cut_left, cut_right;
    __device__ bool cut(int b) const { return (b == first && cut_left) || (b == last && cut_right); }
  };
  __device__ Blocks blocks_of(int level) const {
    const int first = low >> level, last = in.causal ? ((position + 1) >> level) - 1 : high >> level;
    const bool ends_inside = !in.causal && high < in.tokens - 1 && ((high + 1) & ((1 << level) - 1)) != 0;
    return {level, first, last, low > first << level, ends_inside};
  }

  // Of a target's terms by blocks: a lower bound of the largest, an upper one of what is surely kept; whether a weight
  // is NaN or +inf, or may be, in a block that the support cuts.
  struct Bounds {
    float least, most;
    bool bad, bad_edge;
  };

  __device__ void bound_blocks(const Blocks& blocks, Bounds& bounds) const {
    const float* logs = block_logs(blocks.level);
    for (int b = blocks.first + lanes.lane; b <= blocks.last; b += kLanes) {
      if (blocks.cut(b)) {  // the token that is bad may not be a source
        bounds.bad_edge = bounds.bad_edge || isnan(logs[b]);
        continue;
      }
      bounds.bad = bounds.bad || isnan(logs[b]);
      const float far = far_distance(b << blocks.level, ((b + 1) << blocks.level) - 1);
      bounds.least = fmaxf(bounds.least, logs[b] - square(target.scale * far));
    }
  }

  // The blocks of lower levels and the last tokens that a causal target takes after blocks of this level.
  __device__ void bound_remainders(int level, Bounds& bounds) const {
    for (int m = level - 1 - lanes.lane; m >= kLeaf; m -= kLanes) {
      const int b = ((position + 1) >> m) - 1;
      if (!takes_remainder(position, m, b)) continue;
      const float log_weight = block_logs(m)[b];
      const int t0 = b << m, t1 = ((b + 1) << m) - 1;
      bounds.bad = bounds.bad || isnan(log_weight);
      bounds.least = fmaxf(bounds.least, log_weight - square(target.scale * far_distance(t0, t1)));
      bounds.most = fmaxf(bounds.most, ceilf(log_weight) - square(target.scale * near_distance(t0, t1)));
    }
    for (int j = near_begin(position) + lanes.lane; j <= position; j += kLanes) {
      const float v = token_logs()[j] * kLog2e - square(target.scale * static_cast<float>(position - j));
      bounds.bad = bounds.bad || nan_or_plus_infinity(v);
      bounds.least = fmaxf(bounds.least, v);
      bounds.most = fmaxf(bounds.most, v);
    }
  }

  // Where every live token lies in the blocks that the support cuts: between which of them.
  __device__ void tokens_of_cut_blocks(const Blocks& blocks, int& begin, int& end) const {
    const float* logs = block_logs(blocks.level);
    const bool some = blocks.first <= blocks.last;
    const bool left = blocks.cut_left && some && logs[blocks.first] > minus_infinity();
    const bool right = blocks.cut_right && some && logs[blocks.last] > minus_infinity();
    begin = left ? low : right ? max(low, blocks.last << blocks.level) : low;
    end = right || (left && in.causal) ? high + 1 : left ? min(high + 1, (blocks.first + 1) << blocks.level) : low;
  }

  // The outermost blocks that matter (last < first: none does), and whether all that do may be interpolated.
  struct Kept {
    int first, last;
    bool exact;
  };
  __device__ Kept keep_blocks(const Blocks& blocks, Bounds& bounds) const {
    const float *logs = block_logs(blocks.level), *tops = in.block_top + first_block(blocks.level);
    const int level = blocks.level, count = max(1, blocks.last - blocks.first + 1);
    const float threshold = bounds.least - precision.cut - quick_log(static_cast<float>(count));
    const float unit = quick_inverse(target.sigma), error = interpolation_error(static_cast<float>(1 << level) * unit);
    Kept kept{blocks.last + 1, blocks.first - 1, true};
    for (int b = blocks.first + lanes.lane; b <= blocks.last; b += kLanes) {
      const int t0 = b << level, t1 = ((b + 1) << level) - 1;
      const float near = near_distance(t0, t1), decay = square(target.scale * near), bound = logs[b] - decay;
      const float heaviest = tops[b] - decay + (static_cast<float>(level) - kLevelSlack);
      if (fmaxf(bound, heaviest) < threshold && !bounds.bad) continue;
      kept.first = min(kept.first, b);
      kept.last = max(kept.last, b);
      bounds.most = fmaxf(bounds.most, ceilf(logs[b]) - decay);
      kept.exact =
          kept.exact && bound + error + interpolation_error_growth(near * unit) <= bounds.least + precision.tolerance;
    }
    kept.first = -lanes.max(-kept.first);
    kept.last = lanes.max(kept.last);
    bounds.most = lanes.max(bounds.most);
    return kept;
  }

  enum class Verdict { planned, smaller_blocks, tokens };

  // Tries blocks of 2^level tokens; if that makes no plan, what else to try between tokens begin and end.
  __device__ Verdict by_blocks(int level, int& begin, int& end) {
    const Blocks blocks = blocks_of(level);
    Bounds bounds{own, own, nan_or_plus_infinity(own), false};
    bound_blocks(blocks, bounds);
    if (in.causal) bound_remainders(level, bounds);
    bounds.least = lanes.max(bounds.least);
    bounds.bad = lanes.any(bounds.bad);
    if (!bounds.bad && lanes.any(bounds.bad_edge)) {
      begin = low;
      end = high + 1;
      return Verdict::tokens;
    }
    if (!bounds.bad && !(bounds.least > minus_infinity())) {
      tokens_of_cut_blocks(blocks, begin, end);
      return Verdict::tokens;
    }
    const Kept kept = keep_blocks(blocks, bounds);
    const int last = blocks.last;
    const bool none = kept.last < kept.first;
    const bool edge =
        !none && ((blocks.cut_left && kept.first == blocks.first) || (blocks.cut_right && kept.last == last));
    // In a causal plan the blocks of lower levels and the last tokens come after the kept ones, whatever was kept.
    begin = none ? (in.causal ? max(low, (last + 1) << level) : low) : max(low, kept.first << level);
    end = in.causal ? position + 1 : none ? low : min(high + 1, (kept.last + 1) << level);
    if (edge && !bounds.bad) return Verdict::tokens;  // the support's edge falls into a block that matters
    const bool long_blocks = static_cast<float>(1 << level) * 8 > target.sigma;
    if (lanes.any(!kept.exact) && !bounds.bad && long_blocks) return Verdict::smaller_blocks;
    target.level = level;
    target.begin = none ? last + 1 : kept.first;
    target.end = none ? last + 1 : kept.last + 1;
    target.exponent = bounds.bad ? not_a_number() : ceilf(bounds.most);
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

}  // namespace contextpool::cuda
