// The sources of one target as rows to sum: single tokens and nodes of merged blocks, with their weights
//   2^(bits_j - scale) g(i - j)   and   2^(exponent_b - scale) g(i - t_q),
// where scale is about the largest exponent, so that the sum of weights can neither overflow nor vanish.
#pragma once

#include "kernels/cpu/pool1d_plan.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

// Weights are laid out by strips of rows: strips start at multiples of kStrip, and rows of a strip that are no sources
// have weight 0. A segment's weights start and end at multiples of kAlign.
inline constexpr int kStrip = 4;
inline constexpr int kAlign = 8;
static_assert(kAlign % kStrip == 0 && kAlign % kLanes<double> == 0);

// Consecutive rows of one kind: tokens (level < 0) or all nodes of consecutive blocks of a level. Rows are counted from
// the first token, or the first node of the level.
struct Segment {
  int level;
  std::int64_t begin;  // rows begin..end are sources
  std::int64_t end;
  std::int64_t offset;  // place of the weight of row first()

  std::int64_t first() const { return begin & ~std::int64_t{kAlign - 1}; }
  std::int64_t padded() const { return ((end + kAlign - 1) & ~std::int64_t{kAlign - 1}) - first(); }
};

// Cuts a plan's range into segments: blocks of the plan's level where they fit, smaller ones towards a hard edge, the
// last tokens one by one.
class Cover {
 public:
  void assign(const Plan& plan, const TreeShape& shape, bool causal, int nodes) {
    count_ = 0;
    rows_ = 0;
    sources_ = 0;
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
        add(level, (at >> level) * nodes, count * nodes);
        at += count << level;
      } else {
        const std::int64_t next = merge ? ((at >> shape.leaf) + 1) << shape.leaf : end;
        const std::int64_t stop = std::min(end, next);
        add(-1, at, stop - at);
        at = stop;
      }
    }
  }

  const Segment* begin() const { return segments_; }
  const Segment* end() const { return segments_ + count_; }
  std::int64_t rows() const { return rows_; }        // weights, those of padding included
  std::int64_t sources() const { return sources_; }  // without

 private:
  void add(int level, std::int64_t begin, std::int64_t count) {
    Segment& s = segments_[count_++];
    s = {level, begin, begin + count, rows_};
    rows_ += s.padded();
    sources_ += count;
  }

  Segment segments_[2 * kMaxLevels];  // at most one a level on each side, and tokens at both ends
  int count_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t sources_ = 0;
};

struct SourceInput {
  const TreeShape* shape = nullptr;
  const double* bits = nullptr;      // [tokens, and kAlign more of -inf]
  const double* exponent = nullptr;  // [blocks]
};

// The sums over a target's sources of weight and of weight * falloff, falloff = t^2 log2(e) / (2 sigma^2).
struct WeightSums {
  double weight = 0;
  double square = 0;
};

template <class T>
class Weigher {
 public:
  static constexpr int p = kNodes<T>;
  explicit Weigher(const SourceInput& in) : in_(in) {
    const auto& table = NodeTable<p>::get();
    for (int q = 0; q < p; ++q) place_[q] = table.place[q];
  }

  // The weights over their sum, which was found before.
  void weigh(const Cover& cover, std::int64_t i, double sigma, double scale, double inverse, T* weight) const {
    visit(cover, i, sigma, [&](const Segment&, std::int64_t at, Vec<double> exponent, Vec<double>) {
      put(weight + at, exp2<T>(exponent - scale) * inverse);
    });
  }

  // The weights, and with `squares` weight * falloff, and their sums; `masses` are the nodes' own weights.
  template <bool squares>
  WeightSums weigh(const Cover& cover, std::int64_t i, double sigma, double scale, const SourceNodes<T>& masses,
                   T* weight, T* square) const {
    Vec<double> sum = {};
    Vec<double> sum_square = {};
    const Segment* segment = nullptr;
    const T* mass = nullptr;
    visit(cover, i, sigma, [&](const Segment& s, std::int64_t at, Vec<double> exponent, Vec<double> falloff) {
      if (&s != segment) {
        segment = &s;
        mass = s.level < 0 ? nullptr : masses.scalar(in_.shape->index(s.level, s.begin / p)) - s.offset;
      }
      const auto w = exp2<T>(exponent - scale);
      const auto m = mass == nullptr ? w : w * load_double(mass + at);
      put(weight + at, w);
      sum += m;
      if constexpr (squares) {
        put(square + at, w * falloff);
        sum_square += m * falloff;
      }
    });
    return {sum_lanes(sum), sum_lanes(sum_square)};
  }

  // The largest exponent of a weight; -inf if there is no source.
  double largest(const Cover& cover, std::int64_t i, double sigma) const {
    auto most = Vec<double>{} - kInfinity;
    visit(cover, i, sigma, [&](const Segment&, std::int64_t, Vec<double> exponent, Vec<double>) {
      most = exponent > most ? exponent : most;
    });
    return max_lanes(most);
  }

 private:
  static void put(T* p, Vec<double> v) {
    const auto narrow = __builtin_convertvector(normal<T>(v), typename VecOf<T, kLanes<double> * sizeof(T)>::Type);
    __builtin_memcpy(p, &narrow, sizeof(narrow));
  }

  // body(segment, place of weights, exponents, falloffs) over all vectors of weights. Where there is no source the
  // exponent is -inf and the falloff 0.
  template <class Body>
  void visit(const Cover& cover, std::int64_t i, double sigma, const Body& body) const {
    const double inv = sigma > 0 ? kLog2E / (2 * sigma * sigma) : 0;
    for (const Segment& s : cover) {
      if (s.level < 0) {
        visit_tokens(s, i, inv, body);
      } else {
        visit_nodes(s, i, inv, body);
      }
    }
  }

  template <class Body>
  void visit_tokens(const Segment& s, std::int64_t i, double inv, const Body& body) const {
    constexpr int w = kLanes<double>;
    const std::int64_t first = s.first();
    const std::int64_t rows = s.padded();
    const double* bits = in_.bits + first;
    const auto nothing = Vec<double>{} - kInfinity;
    auto t = static_cast<double>(i - first) - iota();
    for (std::int64_t r = 0; r < rows; r += w, t -= w) {
      auto exponent = load(bits + r);
      auto f = t * t * inv;
      if (r < kAlign || r + kAlign >= rows) {
        const auto row = iota() + static_cast<double>(first + r);
        const auto is_source = (row >= static_cast<double>(s.begin)) & (row < static_cast<double>(s.end));
        exponent = is_source ? exponent : nothing;
        // At t = 0 the product is 0 * inf where sigma^2 vanishes.
        f = is_source & (t != 0.0) ? f : Vec<double>{};
      }
      body(s, s.offset + r, exponent - f, f);
    }
  }

  template <class Body>
  void visit_nodes(const Segment& s, std::int64_t i, double inv, const Body& body) const {
    constexpr int w = kLanes<double>;
    const auto length = static_cast<double>(std::int64_t{1} << s.level);
    const std::int64_t block = s.begin / p;
    const double* exponent = in_.exponent + in_.shape->index(s.level, block);
    Vec<double> place[p / w];
    for (int q = 0; q < p / w; ++q) place[q] = load(place_ + q * w) * (length / 2);
    double middle = static_cast<double>((block << s.level) - i) + (length - 1) / 2;
    for (std::int64_t at = s.offset; at < s.offset + s.end - s.begin; at += p, ++exponent, middle += length) {
      for (int q = 0; q < p / w; ++q) {
        const auto t = place[q] + middle;
        const auto f = t * t * inv;
        body(s, at + q * w, *exponent - f, f);
      }
    }
  }

  SourceInput in_;
  double place_[p];
};

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
