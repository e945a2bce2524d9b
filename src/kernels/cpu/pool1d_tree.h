// Sources merged for wide windows: aligned blocks of 2^k tokens, each reduced to p Chebyshev nodes inside itself.
//
// A window is smooth over a block that is no longer than its sigma, so it may be interpolated there from its values at
// the nodes t_q:   sum_{j in block} w_j g(i - j) x_j  =  sum_q g(i - t_q) u_q,   u_q = sum_j w_j L_q(j) x_j,
// with L_q the Lagrange polynomials of the nodes. The u_q do not depend on the target; a parent's come from its two
// children's exactly (L_q is a polynomial, and the children interpolate it without error). Leaves have 2p tokens, so
// leaf and parent are both a p x 2p matrix times 2p rows.
//
// Weights range over many orders of magnitude. Each block keeps its own power of two: w_j = 2^exponent * (at most 2),
// so nothing overflows, light blocks keep all their digits, and no block depends on tokens outside it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kLog2E = 1.44269504088896340736;

// Nodes per block, by the type of sums: 8 give float32's precision for blocks up to sigma, 16 give float64's.
template <class T>
inline constexpr int kNodes = sizeof(T) == 4 ? 8 : 16;
template <class T>
inline constexpr int kLeafLevel = sizeof(T) == 4 ? 4 : 5;
inline constexpr int kMaxLevels = 64;

// log2 of weights that are as good as 0 beside others of a block: sums with them would be of denormal numbers.
template <class T>
inline constexpr double kTiny = sizeof(T) == 4 ? -100 : -1000;

// Log weight in bits. What is not a number (and +inf, which leaves no finite average) counts as infinitely heavy, so
// that whatever uses it becomes NaN instead of ignoring it.
template <class T>
double bits_of(T log_weight) {
  return log_weight < std::numeric_limits<T>::infinity() ? static_cast<double>(log_weight) * kLog2E : kInfinity;
}

// The constants of p nodes: their places in a block and the matrices that merge 2p tokens, or two children, into p.
template <int p>
struct NodeTable {
  double place[p];  // in (-1, 1), of a block of length 2
  double from_tokens[p][2 * p];
  double from_children[p][2 * p];

  NodeTable() {
    for (int q = 0; q < p; ++q) place[q] = -std::cos(M_PI * (2 * q + 1) / (2 * p));
    for (int r = 0; r < 2 * p; ++r) {
      const double token = (2 * r + 1 - 2 * p) / static_cast<double>(2 * p);
      const double node = place[r % p] / 2 + (r < p ? -0.5 : 0.5);
      for (int q = 0; q < p; ++q) {
        from_tokens[q][r] = lagrange(q, token);
        from_children[q][r] = lagrange(q, node);
      }
    }
  }

  static const NodeTable& get() {
    static const NodeTable table;
    return table;
  }

 private:
  double lagrange(int q, double at) const {
    double value = 1;
    for (int m = 0; m < p; ++m) {
      if (m != q) value *= (at - place[m]) / (place[q] - place[m]);
    }
    return value;
  }
};

// Where the blocks of one sequence lie: all levels in one array, leaves first.
struct TreeShape {
  int leaf = 0;
  int top = -1;  // the highest level with a whole block; below leaf when the sequence is shorter than one
  std::int64_t tokens = 0;
  std::int64_t first[kMaxLevels] = {};  // index of a level's first block
  std::int64_t blocks = 0;

  TreeShape(std::int64_t n, int leaf_level) : leaf(leaf_level), tokens(n) {
    for (top = leaf - 1; top + 1 < kMaxLevels - 1 && (std::int64_t{1} << (top + 1)) <= n;) {
      ++top;
      first[top] = blocks;
      blocks += count(top);
    }
  }
  std::int64_t count(int level) const { return (tokens + (std::int64_t{1} << level) - 1) >> level; }
  std::int64_t index(int level, std::int64_t block) const { return first[level] + block; }
};

// The weights of one sequence: per token relative to its leaf, per block its power of two and its total.
template <class T>
class Masses {
 public:
  Masses(const TreeShape& shape, const T* log_weight, const Parallel& parallel)
      : weight(shape.tokens), exponent(shape.blocks), total(shape.blocks) {
    parallel.run(shape.top < shape.leaf ? 0 : shape.count(shape.leaf), 256, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) leaf(shape, log_weight, b);
    });
    for (int level = shape.leaf + 1; level <= shape.top; ++level) {
      for (std::int64_t b = 0; b < shape.count(level); ++b) parent(shape, level, b);
    }
  }

  Buffer<T> weight;         // [tokens] 2^(bits - exponent of its leaf)
  Buffer<double> exponent;  // [blocks] integer, -inf for a block without sources
  Buffer<double> total;     // [blocks] log2 of the sum of weights, +inf where it is not a number

 private:
  void leaf(const TreeShape& shape, const T* log_weight, std::int64_t b) {
    const std::int64_t begin = b << shape.leaf;
    const std::int64_t end = std::min(begin + (std::int64_t{1} << shape.leaf), shape.tokens);
    double most = -kInfinity;
    bool finite = true;
    for (std::int64_t j = begin; j < end; ++j) {
      const double bits = bits_of(log_weight[j]);
      finite = finite && bits < kInfinity;
      most = bits < kInfinity && bits > most ? bits : most;
    }
    const double e = std::floor(most);
    double sum = 0;
    for (std::int64_t j = begin; j < end; ++j) {
      const double bits = bits_of(log_weight[j]);
      double w = bits - e > kTiny<T> ? std::exp2(bits - e) : 0;
      if (bits == kInfinity) w = std::numeric_limits<double>::quiet_NaN();
      weight[j] = static_cast<T>(w);
      sum += w;
    }
    const std::int64_t k = shape.index(shape.leaf, b);
    exponent[k] = finite || e > -kInfinity ? e : 0;
    total[k] = !finite ? kInfinity : sum > 0 ? e + std::log2(sum) : -kInfinity;
  }

  void parent(const TreeShape& shape, int level, std::int64_t b) {
    const std::int64_t left = shape.index(level - 1, 2 * b);
    const bool both = 2 * b + 1 < shape.count(level - 1);
    const std::int64_t k = shape.index(level, b);
    exponent[k] = both ? std::max(exponent[left], exponent[left + 1]) : exponent[left];
    total[k] = total[left];
    if (!both) return;
    const double high = std::max(total[left], total[left + 1]);
    const double low = std::min(total[left], total[left + 1]);
    total[k] = low == -kInfinity || high == kInfinity ? high : high + std::log2(1 + std::exp2(low - high));
  }
};

// 2^(child - parent), or 0 for a child without sources, or of no weight beside the other.
template <class T>
T rescale(double child, double parent) {
  return child - parent > kTiny<T> ? static_cast<T>(std::exp2(child - parent)) : T{0};
}

// The matrix that merges into a block: rows of 2p tokens with their weights, or of two children with their powers of
// two; use[r] tells which rows count.
template <class T>
struct Merge {
  static constexpr int p = kNodes<T>;
  T matrix[p * 2 * p];
  T use[2 * p];
  int rows = 0;

  Merge(const TreeShape& shape, const Masses<T>& masses, int level, std::int64_t b) {
    const auto& table = NodeTable<p>::get();
    const bool leaf = level == shape.leaf;
    if (leaf) {
      const std::int64_t begin = b << level;
      rows = static_cast<int>(std::min<std::int64_t>(2 * p, shape.tokens - begin));
      for (int r = 0; r < rows; ++r) use[r] = masses.weight[begin + r];
    } else {
      const double own = masses.exponent[shape.index(level, b)];
      rows = 2 * b + 1 < shape.count(level - 1) ? 2 * p : p;
      for (int r = 0; r < rows; ++r) {
        use[r] = rescale<T>(masses.exponent[shape.index(level - 1, 2 * b + r / p)], own);
      }
    }
    for (int q = 0; q < p; ++q) {
      for (int r = 0; r < rows; ++r) {
        matrix[q * rows + r] = static_cast<T>((leaf ? table.from_tokens : table.from_children)[q][r]) * use[r];
      }
    }
  }
};

// A row of channels, and `scalars` more numbers, at every node of every block of levels leaf..highest.
template <class A, int p, int scalars = 1>
class NodeRows {
 public:
  NodeRows(const TreeShape& shape, int highest, std::int64_t channels)
      : channels_(channels),
        nodes_(highest < shape.leaf ? 0 : (shape.first[highest] + shape.count(highest)) * p),
        rows_(nodes_ * channels),
        scalar_(nodes_ * scalars) {}

  void clear(const Parallel& parallel) {
    parallel.run(nodes_, 1024, [&](std::int64_t begin, std::int64_t end) {
      const auto count = static_cast<std::size_t>(end - begin);
      std::memset(rows_.data() + begin * channels_, 0, count * static_cast<std::size_t>(channels_) * sizeof(A));
      std::memset(scalar_.data() + begin * scalars, 0, count * scalars * sizeof(A));
    });
  }
  // All nodes of `count` consecutive blocks.
  Rows<A> of(std::int64_t block_index, std::int64_t count) {
    return {rows_.data() + block_index * p * channels_, channels_, count * p};
  }
  Rows<const A> of(std::int64_t block_index, std::int64_t count) const {
    return {rows_.data() + block_index * p * channels_, channels_, count * p};
  }
  A* scalar(std::int64_t block_index) { return scalar_.data() + block_index * p * scalars; }
  const A* scalar(std::int64_t block_index) const { return scalar_.data() + block_index * p * scalars; }

 private:
  std::int64_t channels_;
  std::int64_t nodes_;
  Buffer<A> rows_;
  Buffer<A> scalar_;
};

// The sources, merged; the scalar is their weight.
template <class T>
using SourceNodes = NodeRows<T, kNodes<T>>;
// Gradients gathered at the nodes, in double.
template <class T>
using GradientNodes = NodeRows<double, kNodes<T>, 2>;

// Blocks a thread should get at least, so that a piece is worth handing over.
inline std::int64_t block_grain(std::int64_t channels) { return 1 + 16384 / (channels + 1); }

// u_q of every block up to level `highest`, of x - origin, with the weights themselves as the scalar.
template <class T, class S>
void merge_sources(const TreeShape& shape, const Masses<T>& masses, int highest, std::int64_t channels,
                   const Rows<const S>& x, const T* origin, SourceNodes<T>& nodes, const Parallel& parallel) {
  constexpr int p = kNodes<T>;
  for (int level = shape.leaf; level <= highest; ++level) {
    parallel.run(shape.count(level), block_grain(channels), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const Merge<T> merge(shape, masses, level, b);
        const std::int64_t k = shape.index(level, b);
        T* scalar = nodes.scalar(k);
        const T* below = level == shape.leaf ? nullptr : nodes.scalar(shape.index(level - 1, 2 * b));
        for (int q = 0; q < p; ++q) {
          T sum = 0;
          for (int r = 0; r < merge.rows; ++r) {
            if (merge.use[r] != 0) sum += merge.matrix[q * merge.rows + r] * (below == nullptr ? T{1} : below[r]);
          }
          scalar[q] = sum;
        }
        if (level == shape.leaf) {
          const Rows<const S> tokens{x.row(b << level), x.stride, merge.rows};
          mix_rows<p, T, S>(channels, merge.matrix, merge.use, tokens, origin, nodes.of(k, 1));
        } else {
          const std::int64_t child = shape.index(level - 1, 2 * b);
          const Rows<const T> children{nodes.of(child, 1).data, channels, merge.rows};
          mix_rows<p, T, T>(channels, merge.matrix, merge.use, children, nullptr, nodes.of(k, 1));
        }
      }
    });
  }
}

// The transpose of merge_sources: what was gathered at the nodes is handed down to the tokens and added to dx and to
// the tokens' scalars [tokens, 2] (unless that is null).
template <class T>
void hand_down(const TreeShape& shape, const Masses<T>& masses, int highest, std::int64_t channels,
               GradientNodes<T>& nodes, const Rows<double>& dx, double* scalars, const Parallel& parallel) {
  constexpr int p = kNodes<T>;
  for (int level = highest; level >= shape.leaf; --level) {
    parallel.run(shape.count(level), block_grain(channels), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const std::int64_t k = shape.index(level, b);
        const Rows<const double> gathered = std::as_const(nodes).of(k, 1);
        const double* own = nodes.scalar(k);
        // What no target has as a source hands down nothing, even where its weight is NaN.
        if (all_zero(gathered.data, p * channels) && all_zero(own, 2 * p)) continue;
        const Merge<T> merge(shape, masses, level, b);
        const bool leaf = level == shape.leaf;
        const std::int64_t child = leaf ? 0 : shape.index(level - 1, 2 * b);
        const Rows<double> below = leaf ? Rows<double>{dx.row(b << level), dx.stride, merge.rows}
                                        : Rows<double>{nodes.of(child, 1).data, channels, merge.rows};
        unmix_rows<p, T, double>(channels, merge.matrix, merge.use, gathered, below);
        if (scalars == nullptr) continue;
        double* scalars_below = leaf ? scalars + 2 * (b << level) : nodes.scalar(child);
        for (int r = 0; r < merge.rows; ++r) {
          if (merge.use[r] == 0) continue;
          for (int q = 0; q < p; ++q) {
            const auto m = static_cast<double>(merge.matrix[q * merge.rows + r]);
            scalars_below[2 * r] += m * own[2 * q];
            scalars_below[2 * r + 1] += m * own[2 * q + 1];
          }
        }
      }
    });
  }
}

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
