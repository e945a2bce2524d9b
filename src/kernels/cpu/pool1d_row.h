// One sequence through pool1d, forward and backward.
//
//   y_i       = sum_j p_ij x_j
//   dx_j      = sum_i p_ij dy_i
//   dl_j      = x_j . dx_j - sum_i p_ij c_i,                                           c_i = dy_i . y_i
//   dsigma_i  = (dy_i . sum_j p_ij r_ij x_j - c_i sum_j p_ij r_ij) / sigma_i,          r_ij = (i - j)^2 / sigma_i^2
//
// The gradients of l and sigma stay the same if a row is taken off all x_j, so the backward takes off a row like them,
// the origin: of large features that differ little, or of one that outweighs the rest, the differences count.
//
// Every sum runs over the strips of pool1d_tile.h. Each number is computed by one thread, in an order that depends on
// nothing but the target (or, for sums over targets, on their order), so the bits do not depend on the number of
// threads.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "kernels/cpu/pool1d_balance.h"
#include "kernels/cpu/pool1d_strip.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

template <class S>
struct RowInput {
  using T = typename SumOf<S>::Type;
  std::int64_t tokens = 0;
  std::int64_t targets = 0;
  std::int64_t channels = 0;
  std::int64_t result_row = 0;  // from row to row in y, dy and dx
  bool causal = false;
  Algorithm algorithm = Algorithm::automatic;
  Rows<const S> x;
  const T* log_weight = nullptr;
  const T* sigma = nullptr;
};

template <class S>
class Row {
 public:
  using T = typename SumOf<S>::Type;
  static constexpr int p = kNodes<T>;

  // Plans the targets.
  Row(const RowInput<S>& in, const Parallel& parallel)
      : in_(in),
        parallel_(parallel),
        shape_(in.tokens, kLeafLevel<T>),
        bits_(in.tokens + kAlign),
        plans_(in.targets),
        offsets_(in.targets + 1) {
    for (std::int64_t j = 0; j < in.tokens; ++j) bits_[j] = bits_of(in.log_weight[j]);
    for (std::int64_t j = in.tokens; j < in.tokens + kAlign; ++j) bits_[j] = -kInfinity;
    if (wants_tree()) masses_.emplace(shape_, in.log_weight, parallel);
    make_plans();
  }

  // y [targets, channels]
  void forward(S* y) {
    merge(nullptr);
    for_tiles([&](Workspace& work, std::int64_t begin, std::int64_t end) {
      open_tile(work, begin, end);
      T* weights = work.weights.data();
      weigh_tile<false>(work, weights);
      pool_tile(work, weights, y);
      for (std::int64_t m = begin; m < end; ++m) {
        if (plans_[m].begin >= plans_[m].end) fill(y + m * in_.result_row, is_nan(m) ? in_.sigma[m] : T{0});
      }
    });
  }

  // dy [targets, channels] -> dx [tokens, channels], dl [tokens], dsigma [targets]
  void backward(const S* dy, S* dx, T* dl, T* dsigma) {
    states_.reserve(in_.targets);
    keep_weights();
    find_origin();
    merge(origin_.data());
    for_tiles([&](Workspace& work, std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) {
        states_[m].kind = kind_of(dy + m * in_.result_row);
        // A target whose dy is 0 has no share in any gradient.
        if (states_[m].kind == Kind::zero) plans_[m].end = plans_[m].begin;
        const bool spoils = is_nan(m) && states_[m].kind != Kind::zero;
        dsigma[m] = spoils ? in_.sigma[m] : T{0};
      }
      open_tile(work, begin, end);
      score_tile(work, dy, dsigma);
    });
    sources_.reset();
    collect(dy, dx, dl, dsigma);
  }

 private:
  static constexpr std::int64_t kSmall = std::int64_t{1} << 22;  // features whose gradient may lie in double at once

  // What dy of a target holds.
  enum class Kind : std::uint8_t { zero, finite, other };

  // What the backward needs to know of a target: the scale of its weights, 1 / their sum, c_i, and where its weights
  // are kept (below 0: nowhere).
  struct State {
    double scale;
    double inverse;
    double mean;
    std::int64_t kept;
    Kind kind;
  };

  // What one thread works with: a tile's targets that have sources, their strips, and room for their numbers.
  struct Workspace {
    explicit Workspace(const SourceInput& in) : weigher(in), members(kTile) {}

    Weigher<T> weigher;
    int count = 0;
    Buffer<Member> members;
    Strips strips;
    WeightSums sums[kTile];
    double scale[kTile] = {};
    Buffer<T> weights;
    Buffer<T> squares;
    Buffer<T> panel;  // [kTile, width]
    Buffer<T> strip;  // [kStrip, width]
  };

  std::int64_t position(std::int64_t target) const { return in_.tokens - in_.targets + target; }
  SourceInput source_input() const { return {&shape_, bits_.data(), masses_ ? masses_->exponent.data() : nullptr}; }
  bool is_nan(std::int64_t m) const { return in_.sigma[m] != in_.sigma[m]; }

  Kind kind_of(const S* dy) const {
    if (all_zero(dy, in_.channels)) return Kind::zero;
    Vec<T> sum = {};
    for_chunks<T, 1>(in_.channels, [&](const auto& chunk) {
      const Vec<T> v = chunk.load_at(dy, 0);
      sum += v - v;
    });
    return sum_lanes(sum) == 0 ? Kind::finite : Kind::other;
  }

  // The least size whose target takes blocks. Merging costs about as much as reading all tokens four times: it pays if
  // as many targets as there are, with windows of about 6 sigma on a side, would read more. What the others' sizes are
  // must not matter to a target.
  double least_block_size() const {
    constexpr std::int64_t kMerging = 4;
    const std::int64_t window = in_.causal ? 6 : 12;
    const double least = std::ldexp(1.0, shape_.leaf);
    if (in_.algorithm == Algorithm::pyramid) return least;
    if (in_.algorithm != Algorithm::automatic || in_.tokens < 64 || in_.targets < kMerging) return kInfinity;
    return std::max(least, static_cast<double>(kMerging * in_.tokens) / static_cast<double>(window * in_.targets));
  }
  bool wants_tree() const {
    if (shape_.top < shape_.leaf || least_block_size() == kInfinity) return false;
    return std::any_of(in_.sigma, in_.sigma + in_.targets,
                       [least = least_block_size()](T sigma) { return sigma >= least; });
  }

  // Room for the weights that are kept from scoring to spreading: those of targets that have few, so that it takes at
  // most half of x. That is each target's own matter (the others are computed once more, which rounds differently).
  void keep_weights() {
    std::int64_t kept = 0;
    for (std::int64_t m = 0; m < in_.targets; ++m) {
      const std::int64_t rows = offsets_[m + 1] - offsets_[m];
      const bool few = is_small() && 2 * rows <= in_.channels;
      states_[m].kept = few ? kept : -1;
      kept += few ? rows : 0;
    }
    kept_.reserve(kept);
  }
  bool is_small() const { return in_.tokens * in_.channels <= kSmall; }

  void make_plans() {
    const Planner<T> planner({&shape_, bits_.data(), masses_ ? masses_->total.data() : nullptr,
                              masses_ ? masses_->exponent.data() : nullptr, least_block_size(), in_.causal,
                              in_.algorithm == Algorithm::dense});
    parallel_.run(in_.targets, 64, [&](std::int64_t begin, std::int64_t end) {
      Cover cover;
      for (std::int64_t m = begin; m < end; ++m) {
        // A NaN size has no window; its row is filled with NaN where results are written.
        plans_[m] = is_nan(m) ? Plan{} : planner.plan(position(m), in_.sigma[m]);
        cover.assign(plans_[m], shape_, in_.causal, p);
        offsets_[m + 1] = cover.rows();
      }
    });
    offsets_[0] = 0;
    for (std::int64_t m = 0; m < in_.targets; ++m) {
      highest_ = std::max(highest_, plans_[m].level);
      offsets_[m + 1] += offsets_[m];
    }
  }

  // The sources that the plans need, of x - origin.
  void merge(const T* origin) {
    sources_.emplace(shape_, highest_, in_.channels);
    if (highest_ < shape_.leaf) return;
    merge_sources<T, S>(shape_, *masses_, highest_, in_.channels, in_.x, origin, *sources_, parallel_);
  }

  // The features of the heaviest token, and of the first live one where what comes later must not show (causal); 0 for
  // those that are not finite.
  void find_origin() {
    origin_.reserve(panel_width<T>(in_.channels));
    std::int64_t at = 0;
    if (in_.causal) {
      while (at < in_.tokens - 1 && bits_[at] == -kInfinity) ++at;
    } else {
      for (std::int64_t j = 1; j < in_.tokens; ++j) at = bits_[j] > bits_[at] ? j : at;
    }
    copy_row(in_.channels, in_.x.row(at), origin_.data());
    for (std::int64_t d = 0; d < in_.channels; ++d) origin_[d] = std::isfinite(origin_[d]) ? origin_[d] : T{0};
  }

  // body(workspace, begin, end) over tiles of targets.
  template <class Body>
  void for_tiles(const Body& body) {
    const std::int64_t tiles = (in_.targets + kTile - 1) / kTile;
    parallel_.run(tiles, 1 + 64 / (in_.channels + 1), [&](std::int64_t first, std::int64_t past) {
      Workspace work(source_input());
      for (std::int64_t k = first; k < past; ++k) body(work, k * kTile, std::min((k + 1) * kTile, in_.targets));
    });
  }

  // The members and strips of targets begin..end, and room for their weights.
  void open_tile(Workspace& work, std::int64_t begin, std::int64_t end) const {
    work.count = 0;
    for (std::int64_t m = begin; m < end; ++m) {
      if (plans_[m].begin >= plans_[m].end) continue;
      Member& member = work.members[work.count++];
      member.target = m;
      member.offset = offsets_[m] - offsets_[begin];
      member.cover.assign(plans_[m], shape_, in_.causal, p);
    }
    work.weights.reserve(offsets_[end] - offsets_[begin]);
  }

  // The weights of a tile's members, and with `squares` those times the falloff. A member all of whose sources are
  // masked leaves the tile, and its plan becomes empty.
  template <bool squares>
  void weigh_tile(Workspace& work, T* weights) {
    int live = 0;
    for (int k = 0; k < work.count; ++k) {
      Member& member = work.members[live];
      if (live != k) member = work.members[k];
      work.sums[live] = weigh<squares>(work, member, weights + member.offset, work.scale[live]);
      if (work.scale[live] > -kInfinity) {
        ++live;
      } else {
        plans_[member.target].end = plans_[member.target].begin;
      }
    }
    work.count = live;
  }

  // One member's weights by the scale of its plan, exact for tokens; should that of blocks turn out far off (a heavy
  // token may lie in a part of a block that bounds nothing), by the exact one.
  template <bool squares>
  WeightSums weigh(Workspace& work, const Member& member, T* weight, double& scale) const {
    constexpr double least = 0x1p-10;
    constexpr double most = 0x1p10;
    const std::int64_t i = position(member.target);
    const double sigma = in_.sigma[member.target];
    T* square = squares ? work.squares.data() + member.offset : nullptr;
    const auto run = [&] {
      return work.weigher.template weigh<squares>(member.cover, i, sigma, scale, *sources_, weight, square);
    };
    scale = plans_[member.target].scale;
    const WeightSums sums = run();
    const bool exact = plans_[member.target].level < 0;
    if (sums.weight > least && (sums.weight < most || exact)) return sums;
    scale = work.weigher.largest(member.cover, i, sigma);
    return scale > -kInfinity ? run() : WeightSums{};
  }

  void fill(S* row, T value) const {
    const Vec<T> all = Vec<T>{} + value;
    for_chunks<T, 1>(in_.channels, [&](const auto& chunk) { chunk.store_at(row, 0, all); });
  }

  // body(rows) with the rows begin..end of a level: of x, or of merged sources.
  template <class Body>
  void with_rows(int level, std::int64_t begin, std::int64_t end, const Body& body) const {
    if (level < 0) {
      end = std::min(end, in_.tokens);
      body(Rows<const S>{in_.x.row(begin), in_.x.stride, end - begin});
    } else {
      const auto rows = std::as_const(*sources_).of(shape_.index(level, 0), 0);
      body(Rows<const T>{rows.row(begin), rows.stride, end - begin});
    }
  }

  // body(run, strip, visitors) over the strips of a tile.
  template <class Body>
  static void for_strips(const Strips& strips, const T* weights, const Body& body) {
    for (const StripRun& run : strips) {
      for (std::int64_t k = run.first; k < run.first + run.count; ++k) {
        const std::uint64_t mask = strips.mask(run, k);
        if (mask != 0) body(run, k, Visitors<T>{mask, strips.slots(run), weights + k * kStrip});
      }
    }
  }

  // y of a tile's members. A sum of many rows is folded now and then, and one that is not finite may include a row of
  // no concern to it: these are summed alone.
  void pool_tile(Workspace& work, const T* weights, S* y) const {
    work.strips.assign(work.members.data(), work.count, [](const Member& m) { return m.cover.sources() <= kFold; });
    work.panel.reserve(kTile * kChunk * kLanes<T>);
    T* sums = work.panel.data();
    for_chunks<T, kChunk>(in_.channels, [&](const auto& chunk) {
      constexpr int vectors = std::decay_t<decltype(chunk)>::kVectors;
      constexpr int width = vectors * kLanes<T>;
      std::memset(sums, 0, static_cast<std::size_t>(work.count) * width * sizeof(T));
      for_strips(work.strips, weights, [&](const StripRun& run, std::int64_t k, const Visitors<T>& visitors) {
        with_rows(run.level, k * kStrip, (k + 1) * kStrip,
                  [&](const auto& rows) { pool_strip(chunk, rows, visitors, sums); });
      });
      for (int k = 0; k < work.count; ++k) {
        const Member& member = work.members[k];
        Vec<T> sum[vectors];
        Vec<T> zero = {};
        for (int v = 0; v < vectors; ++v) {
          sum[v] = load(sums + k * width + v * kLanes<T>);
          zero += sum[v] - sum[v];
        }
        if (member.cover.sources() > kFold || sum_lanes(zero) != 0) {
          pool_alone(chunk, member.cover, weights + member.offset, sum);
        }
        const auto inverse = static_cast<T>(1 / work.sums[k].weight);
        // Adding 0 makes -0 to 0: which of them a sum of nothing is may depend on rows of no concern to it.
        for (int v = 0; v < vectors; ++v) {
          chunk.store_at(y + member.target * in_.result_row, v, (sum[v] + T{0}) * inverse);
        }
      }
    });
  }

  // A short sum is taken in the order of the strips, so that it has the same bits.
  template <class C>
  void pool_alone(const C& chunk, const Cover& cover, const T* weight, Vec<T>* total) const {
    for (int v = 0; v < C::kVectors; ++v) total[v] = Vec<T>{};
    const bool is_long = cover.sources() > kFold;
    for (int level = -1; level <= highest_; ++level) {
      for (const Segment& s : cover) {
        if (s.level != level) continue;
        const T* own = weight + s.offset + (s.begin - s.first());
        with_rows(s.level, s.begin, s.end, [&](const auto& rows) {
          is_long ? add_rows(chunk, rows, own, total) : chain_rows(chunk, rows, own, total);
        });
      }
    }
  }

  // c_i and dsigma_i of a tile's members, and the state that collect() needs.
  void score_tile(Workspace& work, const S* dy, T* dsigma) {
    if (work.count == 0) return;
    const std::int64_t width = panel_width<T>(in_.channels);
    const std::int64_t first = offsets_[work.members[0].target] - work.members[0].offset;
    T* weights = work.weights.data();
    work.squares.reserve(offsets_[work.members[work.count - 1].target + 1] - first);
    work.panel.reserve(kTile * width);
    work.strip.reserve(kStrip * width);
    Scores scores[kTile] = {};
    weigh_tile<true>(work, weights);
    for (int k = 0; k < work.count; ++k) {
      copy_row(in_.channels, dy + work.members[k].target * in_.result_row, work.panel.data() + k * width);
    }
    work.strips.assign(work.members.data(), work.count, [](const Member&) { return true; });
    for_strips(work.strips, weights, [&](const StripRun& run, std::int64_t k, const Visitors<T>& visitors) {
      with_rows(run.level, k * kStrip, (k + 1) * kStrip, [&](const auto& rows) {
        copy_rows<kStrip>(in_.channels, rows, run.level < 0 ? origin_.data() : nullptr, work.strip.data());
      });
      score_strip(work.strip.data(), work.panel.data(), width, visitors, work.squares.data() + k * kStrip, scores);
    });
    for (int k = 0; k < work.count; ++k) {
      const Member& member = work.members[k];
      const WeightSums& sums = work.sums[k];
      State& state = states_[member.target];
      state.scale = work.scale[k];
      state.inverse = 1 / sums.weight;
      state.mean = sum_lanes(scores[k].mean) * state.inverse;
      const double moment = (sum_lanes(scores[k].square) - state.mean * sums.square) * (2 / kLog2E);
      // Without a neighbour there is nothing that sigma could change (and 1 / sigma may overflow).
      const bool alone = sums.square == 0;
      dsigma[member.target] =
          alone ? T{0} : static_cast<T>(moment * state.inverse / static_cast<double>(in_.sigma[member.target]));
      if (state.kept < 0) continue;
      const T* own = weights + member.offset;
      T* kept = kept_.data() + state.kept;
      const auto inverse = static_cast<T>(state.inverse);
      for (std::int64_t r = 0; r < member.cover.rows(); ++r) {
        const T weight = own[r] * inverse;
        kept[r] = weight < std::numeric_limits<T>::min() ? T{0} : weight;
      }
    }
  }

  // dx and dl. Sums over targets are kept in double: x_j . dx_j and sum_i p_ij c_i nearly cancel where a token is all
  // that many targets see. To bound the memory this takes, a long sequence goes half of its channels at a time.
  void collect(const S* dy, S* dx, T* dl, const T* dsigma) {
    const std::int64_t step = 2 * kLanes<T>;
    const bool whole = in_.channels <= step || is_small();
    const std::int64_t width = whole ? in_.channels : ((in_.channels + 1) / 2 + step - 1) / step * step;
    Buffer<double> sums(in_.tokens * width);
    Buffer<double> scalars(in_.tokens * 2);  // sum_i p_ij c_i and sum_i p_ij
    Buffer<double> scores(in_.tokens);       // (x_j - origin) . dx_j
    GradientNodes<T> nodes(shape_, highest_, width);
    clear(scalars.data(), in_.tokens * 2);
    clear(scores.data(), in_.tokens);
    for (std::int64_t first = 0; first < in_.channels; first += width) {
      const std::int64_t channels = std::min(width, in_.channels - first);
      clear(sums.data(), in_.tokens * width);
      nodes.clear(parallel_);
      const Rows<double> rows{sums.data(), width, in_.tokens};
      spread(dy + first, channels, nodes, rows, first == 0 ? scalars.data() : nullptr);
      if (highest_ >= shape_.leaf) {
        hand_down<T>(shape_, *masses_, highest_, width, nodes, rows, first == 0 ? scalars.data() : nullptr, parallel_);
      }
      store_channels(first, channels, rows, dx, scores.data(), spoiled_tokens(dsigma));
    }
    balance(in_.tokens, tokens_that_count(), scores.data(), scalars.data(), dl);
  }

  // Those up to the last target with a share in the gradients, if causal: the rest may hold anything.
  std::int64_t tokens_that_count() const {
    if (!in_.causal) return in_.tokens;
    std::int64_t m = in_.targets;
    while (m > 0 && states_[m - 1].kind == Kind::zero) --m;
    return m == 0 ? 0 : position(m - 1) + 1;
  }

  void clear(double* values, std::int64_t count) const {
    parallel_.run(count, 1 << 18, [&](std::int64_t begin, std::int64_t end) {
      std::memset(values + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(double));
    });
  }

  // Each target's share goes to its sources. Tokens, and blocks by their first token, are dealt out to threads; each
  // walks over all targets in order and adds to its own only.
  void spread(const S* dy, std::int64_t channels, GradientNodes<T>& nodes, const Rows<double>& rows, double* scalars) {
    constexpr std::int64_t share = 256;  // tokens: whole strips, and worth a thread
    const std::int64_t shares = (in_.tokens + share - 1) / share;
    const std::int64_t owners = std::min<std::int64_t>(shares, parallel_.threads);
    parallel_.run(owners, 1, [&](std::int64_t first, std::int64_t past) {
      Workspace work(source_input());
      const std::int64_t own_begin = shares * first / owners * share;
      const std::int64_t own_end = std::min(shares * past / owners * share, in_.tokens);
      for (std::int64_t tile = 0; tile < in_.targets; tile += kTile) {
        const std::int64_t end = std::min(tile + kTile, in_.targets);
        if (!reaches(tile, end, own_begin, own_end)) continue;
        open_tile(work, tile, end);
        spread_tile(work, {own_begin, own_end}, dy, channels, nodes, rows, scalars);
      }
    });
  }

  // Whether any of the targets has sources in begin..end.
  bool reaches(std::int64_t target, std::int64_t past, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t m = target; m < past; ++m) {
      if (plans_[m].begin < std::min(plans_[m].end, end) && plans_[m].end > begin) return true;
    }
    return false;
  }

  // Tokens begin..end and the blocks that start there.
  struct TokenRange {
    std::int64_t begin, end;

    // The first row of a level that is not before token t.
    static std::int64_t row(int level, std::int64_t t) {
      if (level < 0) return t;
      const std::int64_t length = std::int64_t{1} << level;
      return (t + length - 1) / length * p;
    }
    bool has(int level, std::int64_t r) const { return r >= row(level, begin) && r < row(level, end); }
  };

  void spread_tile(Workspace& work, const TokenRange& range, const S* dy, std::int64_t channels,
                   GradientNodes<T>& nodes, const Rows<double>& tokens, double* scalars) {
    const T* weights = work.weights.data();
    double mean[kTile];
    for (int k = 0; k < work.count; ++k) {
      const Member& member = work.members[k];
      const State& state = states_[member.target];
      mean[k] = state.mean;
      T* own = work.weights.data() + member.offset;
      if (state.kept < 0) {
        work.weigher.weigh(member.cover, position(member.target), in_.sigma[member.target], state.scale, state.inverse,
                           own);
      } else {
        std::memcpy(own, kept_.data() + state.kept, static_cast<std::size_t>(member.cover.rows()) * sizeof(T));
      }
    }
    const auto rows_of = [&](int level, std::int64_t begin, std::int64_t end) {
      if (level < 0) return Rows<double>{tokens.row(begin), tokens.stride, std::min(end, tokens.count) - begin};
      const auto rows = nodes.of(shape_.index(level, 0), 0);
      return Rows<double>{rows.row(begin), rows.stride, end - begin};
    };
    const auto for_own = [&](const auto& body) {
      for_strips(work.strips, weights, [&](const StripRun& run, std::int64_t k, const Visitors<T>& visitors) {
        if (range.has(run.level, k * kStrip)) body(run.level, k * kStrip, visitors);
      });
    };
    if (scalars != nullptr) {
      work.strips.assign(work.members.data(), work.count, [](const Member&) { return true; });
      for_own([&](int level, std::int64_t row, const Visitors<T>& visitors) {
        double* out = (level < 0 ? scalars : nodes.scalar(shape_.index(level, 0))) + 2 * row;
        spread_scalars(visitors, mean, level < 0 ? in_.tokens - row : kStrip, out);
      });
    }
    work.strips.assign(work.members.data(), work.count,
                       [&](const Member& m) { return states_[m.target].kind == Kind::finite; });
    work.panel.reserve(kTile * kChunk * kLanes<T>);
    T* values = work.panel.data();
    for_chunks<T, kChunk>(channels, [&](const auto& chunk) {
      constexpr int vectors = std::decay_t<decltype(chunk)>::kVectors;
      for (int k = 0; k < work.count; ++k) {
        const S* own = dy + work.members[k].target * in_.result_row;
        for (int v = 0; v < vectors; ++v) {
          store(values + (k * vectors + v) * kLanes<T>, Vec<T>(chunk.load_at(own, v)));
        }
      }
      for_own([&](int level, std::int64_t row, const Visitors<T>& visitors) {
        spread_strip(chunk, rows_of(level, row, row + kStrip), visitors, values);
      });
      for (int k = 0; k < work.count; ++k) {
        const Member& member = work.members[k];
        if (states_[member.target].kind == Kind::finite) continue;
        Vec<T> value[vectors];
        for (int v = 0; v < vectors; ++v) value[v] = load(values + (k * vectors + v) * kLanes<T>);
        for (const Segment& s : member.cover) {
          const std::int64_t begin = std::max(s.begin, TokenRange::row(s.level, range.begin));
          const std::int64_t end = std::min(s.end, TokenRange::row(s.level, range.end));
          if (begin >= end) continue;
          const T* own = weights + member.offset + s.offset + (begin - s.first());
          spread_rows(chunk, rows_of(s.level, begin, end), own, value);
        }
      }
    });
  }

  // Tokens whose gradient a NaN size has spoiled: every one it could have reached.
  std::int64_t spoiled_tokens(const T* dsigma) const {
    std::int64_t tokens = 0;
    for (std::int64_t m = 0; m < in_.targets; ++m) {
      if (is_nan(m) && dsigma[m] != 0) tokens = in_.causal ? position(m) + 1 : in_.tokens;
    }
    return tokens;
  }

  // Writes channels first.. of dx in the type it is stored in and adds their part of (x_j - origin) . dx_j.
  void store_channels(std::int64_t first, std::int64_t channels, const Rows<double>& sums, S* dx, double* scores,
                      std::int64_t spoiled) const {
    parallel_.run(in_.tokens, 1 + 65536 / (channels + 1), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin; j < end; ++j) {
        const bool masked = bits_[j] == -kInfinity;
        const double poison = j < spoiled && !masked ? std::numeric_limits<double>::quiet_NaN() : 0;
        Vec<double> dot = {};
        for_chunks<double, 1>(channels, [&](const auto& chunk) {
          const auto g = chunk.load_at(sums.row(j), 0) + poison;
          const auto zero = chunk.load_double_at(origin_.data() + first, 0);
          if (!masked) dot += g * (chunk.load_double_at(in_.x.row(j) + first, 0) - zero);
          chunk.store_double_at(dx + j * in_.result_row + first, 0, g);
        });
        scores[j] += sum_lanes(dot);
      }
    });
  }

  RowInput<S> in_;
  const Parallel& parallel_;
  TreeShape shape_;
  Buffer<double> bits_;
  Buffer<Plan> plans_;
  Buffer<std::int64_t> offsets_;  // of the targets' weights, were they all in one array
  Buffer<T> kept_;                // some of those, over their sums
  Buffer<State> states_;
  std::optional<Masses<T>> masses_;
  std::optional<SourceNodes<T>> sources_;
  Buffer<T> origin_;
  int highest_ = -1;
};

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
