// The sources of one target as rows to sum: single tokens and nodes of merged blocks, with their weights
//   2^(bits_j - scale) g(i - j)   and   2^(exponent_b - scale) g(i - t_q),
// where scale is the largest exponent, so that the sum of weights can neither overflow nor vanish.
#pragma once

#include "kernels/cpu/pool1d_plan.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

// Consecutive rows of one kind: tokens (level < 0) or all nodes of consecutive blocks. `at` is the first token or
// block; `offset` the place of its first weight.
struct Segment {
  int level;
  std::int64_t at;
  std::int64_t count;  // tokens or blocks
  std::int64_t offset;
  std::int64_t rows;
};

// What of a segment starts inside begin..end; its offset is kept.
inline Segment clip(const Segment& s, std::int64_t begin, std::int64_t end) {
  const int shift = s.level < 0 ? 0 : s.level;
  const std::int64_t round = (std::int64_t{1} << shift) - 1;
  const std::int64_t first = std::max(s.at, (begin + round) >> shift);
  const std::int64_t past = std::min(s.at + s.count, (end + round) >> shift);
  if (first >= past) return {s.level, first, 0, s.offset, 0};
  return {s.level, first, past - first, s.offset, (past - first) * (s.rows / s.count)};
}

// Cuts a plan's range into segments: blocks of the plan's level where they fit, smaller ones towards a hard edge, the
// last tokens one by one.
class Cover {
 public:
  // Only what starts inside owner_begin..owner_end is taken.
  void assign(const Plan& plan, const TreeShape& shape, bool causal, int nodes, std::int64_t owner_begin,
              std::int64_t owner_end) {
    count_ = 0;
    main_ = -1;
    whole_main_ = {};
    rows_ = 0;
    std::int64_t at = plan.begin;
    std::int64_t end = plan.end;
    const bool merge = plan.level >= shape.leaf;
    // Past the end of the sequence there is nothing, so the last block may reach over it.
    if (merge && !causal && end == shape.tokens) end = ((end - 1) | ((std::int64_t{1} << plan.level) - 1)) + 1;
    while (at < end) {
      const int room = 63 - std::countl_zero(static_cast<std::uint64_t>(end - at));
      const int aligned = at == 0 ? plan.level : std::countr_zero(static_cast<std::uint64_t>(at));
      const int level = merge ? std::min(std::min(room, aligned), plan.level) : -1;
      if (level >= shape.leaf) {
        const std::int64_t count = level == plan.level ? (end - at) >> level : 1;
        add(level, at >> level, count, nodes, owner_begin, owner_end);
        at += count << level;
      } else {
        const std::int64_t next = merge ? ((at >> shape.leaf) + 1) << shape.leaf : end;
        const std::int64_t stop = std::min(end, next);
        add(-1, at, stop - at, nodes, owner_begin, owner_end);
        at = stop;
      }
    }
  }

  const Segment* begin() const { return segments_; }
  const Segment* end() const { return segments_ + count_; }
  // The segment with the most rows; every sum over sources starts with it. `whole_main` is what it would be without
  // owners, `main` the owned part of it, null if there is none.
  const Segment& whole_main() const { return whole_main_; }
  const Segment* main() const { return main_ < 0 ? nullptr : &segments_[main_]; }
  std::int64_t rows() const { return rows_; }

 private:
  void add(int level, std::int64_t at, std::int64_t count, int nodes, std::int64_t owner_begin,
           std::int64_t owner_end) {
    const std::int64_t per = level < 0 ? 1 : nodes;
    const bool is_main = count * per > whole_main_.rows;
    if (is_main) whole_main_ = {level, at, count, 0, count * per};
    const Segment owned = clip({level, at, count, rows_, count * per}, owner_begin, owner_end);
    if (is_main) main_ = owned.count > 0 ? count_ : -1;
    if (owned.count == 0) return;
    segments_[count_++] = owned;
    rows_ += owned.rows;
  }

  Segment segments_[2 * kMaxLevels];  // at most one a level on each side, and tokens at both ends
  Segment whole_main_ = {};
  int count_ = 0;
  int main_ = -1;
  std::int64_t rows_ = 0;
};

// One target's weights over its segments.
template <class T>
struct Weights {
  Buffer<T> weight;
  Buffer<T> square;  // weight * falloff, falloff = t^2 log2(e) / (2 sigma^2), when asked for
  double scale = -kInfinity;
  double sum = 0;         // of weights
  double sum_square = 0;  // of weight * falloff
};

struct SourceInput {
  const TreeShape* shape = nullptr;
  const double* bits = nullptr;      // [tokens]
  const double* exponent = nullptr;  // [blocks]
};

template <class T>
class Weigher {
 public:
  static constexpr int p = kNodes<T>;
  explicit Weigher(const SourceInput& in) : in_(in) {
    const auto& table = NodeTable<p>::get();
    for (int q = 0; q < p; ++q) place_[q] = table.place[q];
  }

  // The weights over their sum, both found before.
  void weigh(const Cover& cover, std::int64_t i, double sigma, double scale, double inverse, Weights<T>& out) {
    exponents(cover, i, sigma);
    out.weight.reserve(padded(cover));
    for (std::int64_t r = 0; r < cover.rows(); r += kLanes<double>) {
      put(out.weight.data() + r, exp2<T>(load(arg_.data() + r) - scale) * inverse);
    }
  }

  // Finds the scale, the weights and their sums; `masses` are the nodes' own weights. False if there is no source.
  template <bool squares>
  bool weigh(const Cover& cover, std::int64_t i, double sigma, const SourceNodes<T>& masses, Weights<T>& out) {
    out.scale = exponents(cover, i, sigma);
    if (out.scale == -kInfinity) return false;
    out.weight.reserve(padded(cover));
    if constexpr (squares) out.square.reserve(padded(cover));
    Vec<double> sum = {};
    Vec<double> sum_square = {};
    const auto ones = Vec<double>{} + 1.0;
    for (const Segment& s : cover) {
      const T* mass = s.level < 0 ? nullptr : masses.scalar(in_.shape->index(s.level, s.at));
      for (std::int64_t r = 0; r < s.rows; r += kLanes<double>) {
        const std::int64_t at = s.offset + r;
        auto m = mass == nullptr ? ones : load_double(mass + r);
        // What is written past a segment's end, the next one overwrites; it only must not be counted.
        if (r + kLanes < double >> s.rows) m = iota() < static_cast<double>(s.rows - r) ? m : Vec<double>{};
        const auto w = exp2<T>(load(arg_.data() + at) - out.scale);
        put(out.weight.data() + at, w);
        sum += w * m;
        if constexpr (squares) {
          const auto w2 = w * load(falloff_.data() + at);
          put(out.square.data() + at, w2);
          sum_square += w2 * m;
        }
      }
    }
    out.sum = sum_lanes(sum);
    out.sum_square = sum_lanes(sum_square);
    return true;
  }

 private:
  static std::int64_t padded(const Cover& cover) { return cover.rows() + kLanes<double>; }

  static void put(T* p, Vec<double> v) {
    const auto narrow = __builtin_convertvector(v, typename VecOf<T, kLanes<double> * sizeof(T)>::Type);
    __builtin_memcpy(p, &narrow, sizeof(narrow));
  }

  // Fills arg_ (the weights' exponents) and falloff_ (t^2 log2(e) / (2 sigma^2)); returns the largest exponent. Past
  // the end there is room for a vector.
  double exponents(const Cover& cover, std::int64_t i, double sigma) {
    arg_.reserve(padded(cover));
    falloff_.reserve(padded(cover));
    const double inv = sigma > 0 ? kLog2E / (2 * sigma * sigma) : 0;
    auto most = Vec<double>{} - kInfinity;
    for (const Segment& s : cover) {
      const auto own = s.level < 0 ? token_exponents(s, i, inv) : node_exponents(s, i, inv);
      most = own > most ? own : most;
    }
    return max_lanes(most);
  }

  Vec<double> token_exponents(const Segment& s, std::int64_t i, double inv) {
    constexpr int w = kLanes<double>;
    const double* bits = in_.bits + s.at;
    double* arg = arg_.data() + s.offset;
    double* falloff = falloff_.data() + s.offset;
    auto most = Vec<double>{} - kInfinity;
    auto t = static_cast<double>(i - s.at) - iota();
    for (std::int64_t r = 0; r < s.count; r += w, t -= w) {
      // 0 * inf where sigma^2 vanishes
      const auto f = t == 0.0 ? Vec<double>{} : t * t * inv;
      const std::int64_t left = s.count - r;
      auto own = left >= w ? load(bits + r) : load_first(bits + r, static_cast<int>(left));
      if (left < w) own = iota() < static_cast<double>(left) ? own : Vec<double>{} - kInfinity;
      const auto e = own - f;
      store(falloff + r, f);
      store(arg + r, e);
      most = e > most ? e : most;
    }
    return most;
  }

  Vec<double> node_exponents(const Segment& s, std::int64_t i, double inv) {
    constexpr int w = kLanes<double>;
    const auto length = static_cast<double>(std::int64_t{1} << s.level);
    const double* exponent = in_.exponent + in_.shape->index(s.level, s.at);
    double* arg = arg_.data() + s.offset;
    double* falloff = falloff_.data() + s.offset;
    Vec<double> place[p / w];
    for (int q = 0; q < p / w; ++q) place[q] = load(place_ + q * w) * (length / 2);
    double middle = static_cast<double>((s.at << s.level) - i) + (length - 1) / 2;
    auto most = Vec<double>{} - kInfinity;
    for (std::int64_t b = 0; b < s.count; ++b, middle += length) {
      for (int q = 0; q < p / w; ++q) {
        const auto t = place[q] + middle;
        const auto f = t * t * inv;
        const auto e = exponent[b] - f;
        store(falloff + b * p + q * w, f);
        store(arg + b * p + q * w, e);
        most = e > most ? e : most;
      }
    }
    return most;
  }

  SourceInput in_;
  double place_[p];
  Buffer<double> arg_;
  Buffer<double> falloff_;
};

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
