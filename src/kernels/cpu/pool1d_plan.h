// Which sources a target needs, and how coarsely they may be merged: a range of tokens and a block level.
//
// Exactly as defined, a target has the sources within sqrt(160) sigma. Most of them do not matter: what lies far out
// has next to no weight, unless everything nearer is lighter still. Both questions are settled per block from bounds
// that cost little: with t_near and t_far the distances of a block's ends and W the sum of its weights, its part of the
// normaliser Z is between W g(t_far) and W g(t_near), and its part of the second moment V = sum w g (t / sigma)^2,
// which is what the gradient of sigma is made of, lies between similar bounds.
//   - The largest of the lower bounds is a lower bound of Z (of V). A block is dropped if its upper bounds are below
//     2^-kDrop / (number of blocks) of both, and those of its heaviest token below 2^-(kDrop - kLevelSlack) / (number
//     of tokens): what all targets leave out of one token is missing from its gradient.
//   - Merging a block costs an error of W g(t_far) 2^error(q), q = t * length / sigma^2 with t the distance of its
//     middle. If that is more than 2^-kTolerance Z (and likewise for V) for any kept block, the target takes blocks
//     half as long, and so on; below q = kAlways the error is always small enough, so this ends after a few steps
//     whatever the weights are.
// Only tokens up to the target are looked at in the causal case.
#pragma once

#include <bit>

#include "kernels/algorithm.h"
#include "kernels/cpu/pool1d_tree.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

// Sources of one target: tokens begin..end, merged in blocks of 2^level where level >= the tree's leaf level. `scale`
// is about log2 of the largest weight times window among them: a bound of what it is at least.
struct Plan {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int level = -1;
  double scale = 0;
};

// All in bits. error(q) bounds log2 of the error of interpolating a window over a block from its nodes, relative to the
// window at the block's far end, as measured over block lengths and distances.
template <class T>
struct Accuracy;
template <>
struct Accuracy<float> {
  static constexpr double kDrop = 20;
  static constexpr double kTolerance = 21;
  static constexpr double kMomentTolerance = 17;
  static constexpr double kAlways = 2.0;
  template <class V>
  static V error(V q) {
    const V a = 6.4 * q - 34.3;
    const V b = 3.4 * q - 25.8;
    return a < b ? a : b;
  }
};
template <>
struct Accuracy<double> {
  static constexpr double kDrop = 43;
  static constexpr double kTolerance = 43;
  static constexpr double kMomentTolerance = 41;
  static constexpr double kAlways = 3.8;
  template <class V>
  static V error(V q) {
    return 5.7 * q - 65.0;
  }
};

// floor(log2 v) for normal v > 0; very negative for 0.
inline Vec<double> floor_log2(Vec<double> v) {
  constexpr double kShift = 0x1p52;
  const auto exponent = bit_cast_vec<Vec<std::uint64_t>>(v) >> 52;
  return bit_cast_vec<Vec<double>>(exponent | 0x4330000000000000) - (kShift + 1023);
}

inline double ceil_log2(std::int64_t n) {
  return n <= 1 ? 0 : 64 - std::countl_zero(static_cast<std::uint64_t>(n - 1));
}

// floor(log2 sigma) for finite positive sigma.
inline int level_of(double sigma) {
  int exponent = 0;
  std::frexp(sigma, &exponent);
  return exponent - 1;
}

// Everything planning reads of one sequence. bits[j] is token j's log weight, `total` as in Masses (null without tree).
struct PlanInput {
  const TreeShape* shape = nullptr;
  const double* bits = nullptr;
  const double* total = nullptr;     // of blocks, as in Masses
  const double* exponent = nullptr;  // likewise
  double least_size = 0;             // the least size whose target takes blocks
  bool causal = false;
  bool keep_all = false;  // dense: the whole support, token by token
};

template <class T>
class Planner {
 public:
  explicit Planner(const PlanInput& in) : in_(in) {}

  Plan plan(std::int64_t i, double sigma) const {
    const std::int64_t n = in_.shape->tokens;
    const std::int64_t radius = support(sigma, n);
    const std::int64_t lo = std::max<std::int64_t>(0, i - radius);
    const std::int64_t hi = in_.causal ? i + 1 : std::min(n, i + radius + 1);
    const double inv = radius > 0 ? kLog2E / (2 * sigma * sigma) : 0;
    if (in_.total != nullptr && sigma >= in_.least_size && !in_.keep_all) {
      int level = sigma < kInfinity ? std::min(level_of(sigma), in_.shape->top) : in_.shape->top;
      for (; level >= in_.shape->leaf; --level) {
        Plan plan{lo, hi, level, 0};
        if (blocks(i, sigma, inv, plan)) return plan;
      }
    }
    return tokens(i, inv, lo, hi);
  }

 private:
  // The largest t with t^2 <= 160 sigma^2, at largest n.
  static std::int64_t support(double sigma, std::int64_t n) {
    if (!(sigma > 0)) return 0;
    const double square = 160 * sigma * sigma;
    if (!(square < static_cast<double>(n) * static_cast<double>(n))) return n;
    auto t = static_cast<std::int64_t>(std::sqrt(square));
    while (static_cast<double>(t) * static_cast<double>(t) > square) --t;
    while (static_cast<double>(t + 1) * static_cast<double>(t + 1) <= square) ++t;
    return t;
  }

  // The tokens of lo..hi that matter, from the first to the last.
  Plan tokens(std::int64_t i, double inv, std::int64_t lo, std::int64_t hi) const {
    constexpr int w = kLanes<double>;
    const auto nothing = Vec<double>{} - kInfinity;
    auto z = nothing;
    auto v = nothing;
    for (std::int64_t j = lo; j < hi; j += w) {
      const TokenTerms terms = token_share(i, inv, j, hi);
      z = terms.weight > z ? terms.weight : z;
      v = terms.moment > v ? terms.moment : v;
    }
    const double largest = max_lanes(z);
    if (largest == -kInfinity) return {i, i, -1, 0};
    if (in_.keep_all) return {lo, hi, -1, largest};
    const double drop = Accuracy<T>::kDrop + ceil_log2(hi - lo);
    const double least = largest - drop;
    const double least_moment = max_lanes(v) - drop - 2;  // floor_log2 is up to 1 off on either side
    std::int64_t begin = hi;
    std::int64_t end = lo;
    const auto visit = [&](std::int64_t j) {
      const TokenTerms terms = token_share(i, inv, j, hi);
      const auto kept = (terms.weight > -kInfinity) & ((terms.weight >= least) | (terms.moment >= least_moment));
      bool any = false;
      for (int k = 0; k < w; ++k) {
        if (!kept[k]) continue;
        begin = std::min(begin, j + k);
        end = std::max(end, j + k + 1);
        any = true;
      }
      return any;
    };
    for (std::int64_t j = lo; !visit(j);) j += w;
    for (std::int64_t j = lo + (hi - 1 - lo) / w * w; !visit(j);) j -= w;
    return {begin, end, -1, largest};
  }

  // log2 of what tokens j, j + 1, ... give to Z, and (up to a factor of 2) to V sigma^2; -inf past the end.
  struct TokenTerms {
    Vec<double> weight, moment;
  };
  TokenTerms token_share(std::int64_t i, double inv, std::int64_t j, std::int64_t hi) const {
    const auto t = static_cast<double>(i - j) - iota();
    const auto left = static_cast<double>(hi - j);
    const bool whole = hi - j >= kLanes<double>;
    const auto bits = whole ? load(in_.bits + j) : load_first(in_.bits + j, static_cast<int>(hi - j));
    const auto nothing = Vec<double>{} - kInfinity;
    const auto weight = iota() < left ? (t == 0.0 ? bits : bits - t * t * inv) : nothing;
    return {weight, t == 0.0 ? nothing : weight + floor_log2(t * t)};
  }

  // Bounds of the blocks from `block` on, as many as a vector holds; past `count` they are -inf.
  struct Bounds {
    Vec<double> upper, lower, upper_moment, lower_moment, far;
  };
  Bounds bounds(std::int64_t i, double inv, int level, std::int64_t block, std::int64_t count) const {
    const auto length = static_cast<double>(std::int64_t{1} << level);
    const auto lane = iota();
    const auto of = [&](const double* p) {
      p += in_.shape->index(level, block);
      return count >= kLanes<double> ? load(p) : load_first(p, static_cast<int>(count));
    };
    constexpr int kLevelSlack = 2;
    const auto total = of(in_.total);
    const auto heaviest = of(in_.exponent) + static_cast<double>(1 + level - kLevelSlack);  // as a block of such tokens
    const auto start = static_cast<double>((block << level) - i) + lane * length;  // first token, relative to i
    const auto last = start + (length - 1);
    const auto zero = Vec<double>{};
    const auto left = -last > zero ? -last : zero;
    const auto near = start > left ? start : left;
    const auto far = last > -start ? last : -start;
    const auto exists = lane < static_cast<double>(count);
    const auto mass = exists ? total : zero - kInfinity;
    const auto upper = (exists & (heaviest > total) ? heaviest : mass) - near * near * inv;
    const auto lower = mass - far * far * inv;
    return {upper, lower, upper + floor_log2(far * far) + 1.0, lower + floor_log2(near * near), far};
  }

  // Narrows plan to what matters; false if blocks of this level are too long.
  bool blocks(std::int64_t i, double sigma, double inv, Plan& plan) const {
    constexpr int w = kLanes<double>;
    using A = Accuracy<T>;
    const int level = plan.level;
    const std::int64_t length = std::int64_t{1} << level;
    const std::int64_t first = plan.begin >> level;
    // In the causal case the block that holds the target reaches past it: it is always taken, cut at the target.
    const std::int64_t past = in_.causal ? plan.end >> level : (plan.end + length - 1) >> level;
    const bool left_whole = (first << level) == plan.begin;
    const bool right_whole = in_.causal || plan.end == in_.shape->tokens || (past << level) == plan.end;
    const std::int64_t whole_begin = left_whole ? first : first + 1;
    const std::int64_t whole_end = right_whole ? past : past - 1;

    const auto nothing = Vec<double>{} - kInfinity;
    auto largest = nothing;
    auto largest_moment = nothing;
    for (std::int64_t b = whole_begin; b < whole_end; b += w) {
      const Bounds bound = bounds(i, inv, level, b, whole_end - b);
      largest = bound.lower > largest ? bound.lower : largest;
      largest_moment = bound.lower_moment > largest_moment ? bound.lower_moment : largest_moment;
    }
    const double z = std::max(in_.bits[i], max_lanes(largest));
    plan.scale = z;
    const double v = max_lanes(largest_moment);  // of V sigma^2

    const double drop = A::kDrop + ceil_log2(past - first);
    const auto half = static_cast<double>(length) / 2;
    const double per_q = static_cast<double>(length) / (sigma * sigma);
    const double square = 20 * sigma * sigma;  // the error of t^2 g is that of g times this, or t^2 farther out
    std::int64_t keep_begin = past;
    std::int64_t keep_end = first;
    for (std::int64_t b = first; b < past; b += w) {
      const Bounds bound = bounds(i, inv, level, b, past - b);
      const auto kept = (bound.upper > -kInfinity) & ((bound.upper >= z - drop) | (bound.upper_moment >= v - drop));
      const auto q = (bound.far - half) * per_q;
      const auto error = bound.lower + A::error(q);
      const auto t2 = bound.far * bound.far;
      const auto moment_error = error + floor_log2(t2 > square ? t2 : Vec<double>{} + square) + 1.0;
      const auto too_coarse =
          kept & (q > A::kAlways) & ((error > z - A::kTolerance) | (moment_error > v - A::kMomentTolerance));
      for (int k = 0; k < w; ++k) {
        if (too_coarse[k]) return false;
        if (!kept[k]) continue;
        keep_begin = std::min(keep_begin, b + k);
        keep_end = b + k + 1;
      }
    }
    if (keep_begin >= keep_end) {
      plan.begin = in_.causal ? past << level : plan.end;
    } else {
      plan.begin = std::max(plan.begin, keep_begin << level);
      if (!in_.causal) plan.end = std::min(plan.end, keep_end << level);
    }
    return true;
  }

  PlanInput in_;
};

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
