// One sequence through pool1d, forward and backward.
//
//   y_i       = sum_j p_ij x_j
//   dx_j      = sum_i p_ij dy_i
//   dl_j      = x_j . dx_j - sum_i p_ij c_i,                                           c_i = dy_i . y_i
//   dsigma_i  = (dy_i . sum_j p_ij r_ij x_j - c_i sum_j p_ij r_ij) / sigma_i,          r_ij = (i - j)^2 / sigma_i^2
//
// Every sum over sources runs over the segments of pool1d_sources.h. Each number is computed by one thread, in an order
// that depends on nothing but the target (or, for sums over targets, on their order), so the bits do not depend on the
// number of threads.
#pragma once

#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "kernels/cpu/pool1d_group.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

template <class S>
struct RowInput {
  using T = typename SumOf<S>::Type;
  std::int64_t tokens = 0;
  std::int64_t targets = 0;
  std::int64_t channels = 0;
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

  // Plans the targets and merges the sources they need.
  Row(const RowInput<S>& in, const Parallel& parallel)
      : in_(in), parallel_(parallel), shape_(in.tokens, kLeafLevel<T>), bits_(in.tokens), plans_(in.targets) {
    for (std::int64_t j = 0; j < in.tokens; ++j) bits_[j] = bits_of(in.log_weight[j]);
    if (wants_tree()) masses_.emplace(shape_, in.log_weight, parallel);
    make_plans();
    sources_.emplace(shape_, highest_, in.channels);
    if (highest_ >= shape_.leaf) {
      merge_sources<T, S>(shape_, *masses_, highest_, in.channels, in.x, *sources_, parallel);
    }
  }

  // y [targets, channels]
  void forward(S* y) {
    for_tiles([&](Workspace& work, std::int64_t begin, std::int64_t end) {
      weigh_tile<false>(work, begin, end);
      for (std::int64_t m = begin; m < end; ++m) {
        if (!work.is_live(m - begin)) fill(y + m * in_.channels, is_nan(m) ? in_.sigma[m] : T{0});
      }
      for (const Group& group : Groups<T>(work.tile, work.live, work.count, kGroup, p)) pool_group(work, group, y);
    });
  }

  // dy [targets, channels] -> dx [tokens, channels], dl [tokens], dsigma [targets]
  void backward(const S* dy, S* dx, T* dl, T* dsigma) {
    states_.reserve(in_.targets);
    for_tiles([&](Workspace& work, std::int64_t begin, std::int64_t end) {
      weigh_tile<true>(work, begin, end, dy);
      for (std::int64_t m = begin; m < end; ++m) {
        if (work.is_live(m - begin)) continue;
        plans_[m].end = plans_[m].begin;
        dsigma[m] = is_nan(m) && !all_zero(dy + m * in_.channels, in_.channels) ? in_.sigma[m] : T{0};
      }
      for (const Group& group : Groups<T>(work.tile, work.live, work.count, kGroup / 2, p)) {
        score_group(work, group, dy, dsigma);
      }
    });
    sources_.reset();
    collect(dy, dx, dl, dsigma);
  }

 private:
  static constexpr int kChunk = 2;  // vectors: with kGroup sums they fill the registers

  static constexpr std::int64_t kSmall = std::int64_t{1} << 22;  // features whose gradient may lie in double at once

  // What the backward needs of a target again: the scale of its weights, 1 / their sum, c_i.
  struct State {
    double scale = 0;
    double inverse = 0;
    double mean = 0;
  };

  // What one thread works with.
  struct Workspace {
    explicit Workspace(const SourceInput& in) : weigher(in) {}
    bool is_live(std::int64_t k) const { return prepared[k]; }

    Weigher<T> weigher;
    Prepared<T> tile[kTile];
    bool prepared[kTile] = {};
    int live[kTile] = {};
    int count = 0;
    Buffer<T> padded;
    const T* streams[kGroup] = {};
  };

  std::int64_t position(std::int64_t target) const { return in_.tokens - in_.targets + target; }
  SourceInput source_input() const { return {&shape_, bits_.data(), masses_ ? masses_->exponent.data() : nullptr}; }
  bool is_nan(std::int64_t m) const { return in_.sigma[m] != in_.sigma[m]; }

  // Merging pays when it is shared by many targets and some of them are wide.
  bool wants_tree() const {
    const bool automatic = in_.algorithm == Algorithm::automatic && in_.targets >= 16 && in_.tokens >= 64;
    if (!automatic && in_.algorithm != Algorithm::pyramid) return false;
    if (shape_.top < shape_.leaf) return false;
    const double narrow = std::ldexp(1.0, shape_.leaf);
    for (std::int64_t m = 0; m < in_.targets; ++m) {
      if (in_.sigma[m] >= narrow) return true;
    }
    return false;
  }

  void make_plans() {
    const Planner<T> planner({&shape_, bits_.data(), masses_ ? masses_->total.data() : nullptr, in_.causal,
                              in_.algorithm == Algorithm::dense});
    parallel_.run(in_.targets, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) {
        // A size that is no number has no window; its row is filled with NaN where results are written.
        plans_[m] = is_nan(m) ? Plan{} : planner.plan(position(m), in_.sigma[m]);
      }
    });
    for (std::int64_t m = 0; m < in_.targets; ++m) highest_ = std::max(highest_, plans_[m].level);
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

  // Covers and weights of a tile's targets. A target whose dy is 0 has no share in any gradient.
  template <bool squares>
  void weigh_tile(Workspace& work, std::int64_t begin, std::int64_t end, const S* dy = nullptr) {
    work.count = 0;
    for (std::int64_t m = begin; m < end; ++m) {
      const int k = static_cast<int>(m - begin);
      Prepared<T>& own = work.tile[k];
      work.prepared[k] = false;
      if (dy != nullptr && all_zero(dy + m * in_.channels, in_.channels)) continue;
      own.target = m;
      own.cover.assign(plans_[m], shape_, in_.causal, p, 0, in_.tokens);
      if (!work.weigher.template weigh<squares>(own.cover, position(m), in_.sigma[m], *sources_, own.weights)) continue;
      work.prepared[k] = true;
      work.live[work.count++] = k;
    }
  }

  void fill(S* row, T value) const {
    const Vec<T> all = Vec<T>{} + value;
    for_chunks<T, 1>(in_.channels, [&](const auto& chunk) { chunk.store_at(row, 0, all); });
  }

  // body(rows) with the rows of a segment: of x, or of merged sources.
  template <class Body>
  void with_rows(const Segment& s, const Body& body) const {
    if (s.level < 0) {
      body(Rows<const S>{in_.x.row(s.at), in_.x.stride, s.count});
    } else {
      body(std::as_const(*sources_).of(shape_.index(s.level, s.at), s.count));
    }
  }

  // total += the weighted rows of all of a target's segments but the main one.
  template <class C>
  void add_rest(const C& chunk, const Cover& cover, const T* weight, Vec<T>* total) const {
    for (const Segment& s : cover) {
      if (&s == cover.main()) continue;
      with_rows(s, [&](const auto& rows) { add_rows(chunk, rows, weight + s.offset, total); });
    }
  }

  // total[k] = sum over the sources of stream k, where stream k belongs to member k / per_member and weight_of gives
  // its weights. The main segments go together; should that not be finite, a row of no concern to a target may be the
  // reason, so each is summed alone.
  template <class C, class WeightOf>
  void sum_group(const C& chunk, Workspace& work, const Group& group, int per_member, const WeightOf& weight_of,
                 Vec<T> (*total)[C::kVectors]) const {
    const int streams = group.count * per_member;
    const auto cover_of = [&](int k) -> const Cover& { return work.tile[group.member[k / per_member]].cover; };
    bool together = group.count > 1 || (per_member > 1 && group.segment.rows <= kFold);
    if (together) {
      with_rows(group.segment, [&](const auto& rows) {
        with_streams(streams, [&](auto count) { add_rows_group<count()>(chunk, rows, work.streams, total); });
      });
      together = all_finite(&total[0][0], streams * C::kVectors);
    }
    for (int k = 0; k < streams; ++k) {
      const Segment& own = *cover_of(k).main();
      if (!together) {
        for (int v = 0; v < C::kVectors; ++v) total[k][v] = Vec<T>{};
        with_rows(own, [&](const auto& rows) { add_rows(chunk, rows, weight_of(k) + own.offset, total[k]); });
      }
      add_rest(chunk, cover_of(k), weight_of(k), total[k]);
    }
  }

  // Lays the weights of a group's streams side by side over the rows of the group.
  template <class WeightOf>
  void pad_group(Workspace& work, const Group& group, const Segment& all, int per_member,
                 const WeightOf& weight_of) const {
    const std::int64_t rows = all.rows;
    work.padded.reserve(rows * kGroup);
    for (int k = 0; k < group.count * per_member; ++k) {
      T* out = work.padded.data() + k * rows;
      pad_weights(all, work.tile[group.member[k / per_member]].cover.main(), weight_of(k), out);
      work.streams[k] = out;
    }
    for (int k = group.count * per_member; k < round_streams(group.count * per_member); ++k) {
      T* out = work.padded.data() + k * rows;
      std::memset(out, 0, static_cast<std::size_t>(rows) * sizeof(T));
      work.streams[k] = out;
    }
  }

  void pool_group(Workspace& work, const Group& group, S* y) const {
    const auto weight_of = [&](int k) { return work.tile[group.member[k]].weights.weight.data(); };
    if (group.count > 1) pad_group(work, group, group.segment, 1, weight_of);
    for_chunks<T, kChunk>(in_.channels, [&](const auto& chunk) {
      using C = std::decay_t<decltype(chunk)>;
      Vec<T> sum[kGroup][C::kVectors] = {};
      sum_group(chunk, work, group, 1, weight_of, sum);
      for (int k = 0; k < group.count; ++k) {
        const auto& own = work.tile[group.member[k]];
        const auto inverse = static_cast<T>(1 / own.weights.sum);
        for (int v = 0; v < C::kVectors; ++v) {
          chunk.store_at(y + own.target * in_.channels, v, sum[k][v] * inverse);
        }
      }
    });
  }

  // c_i and dsigma_i, and the state that collect() needs. Streams 2k and 2k + 1 are weight and weight * r of member k.
  void score_group(Workspace& work, const Group& group, const S* dy, T* dsigma) {
    const auto weight_of = [&](int k) {
      const auto& w = work.tile[group.member[k / 2]].weights;
      return k % 2 == 0 ? w.weight.data() : w.square.data();
    };
    if (group.segment.rows <= kFold) pad_group(work, group, group.segment, 2, weight_of);
    Vec<double> dot[kGroup] = {};  // dy . stream, summed in double: dl is a small difference of such sums
    for_chunks<T, kChunk>(in_.channels, [&](const auto& chunk) {
      using C = std::decay_t<decltype(chunk)>;
      Vec<T> sum[kGroup][C::kVectors] = {};
      sum_group(chunk, work, group, 2, weight_of, sum);
      for (int k = 0; k < 2 * group.count; ++k) {
        const S* g = dy + work.tile[group.member[k / 2]].target * in_.channels;
        for (int v = 0; v < C::kVectors; ++v) {
          T lanes[kLanes<T>];
          store(lanes, Vec<T>(chunk.load_at(g, v)));
          T sums[kLanes<T>];
          store(sums, sum[k][v]);
          for (int d = 0; d < kLanes<T>; d += kLanes<double>) dot[k] += load_double(lanes + d) * load_double(sums + d);
        }
      }
    });
    for (int k = 0; k < group.count; ++k) {
      const auto& own = work.tile[group.member[k]];
      const auto& w = own.weights;
      const double c = sum_lanes(dot[2 * k]) / w.sum;
      states_[own.target] = {w.scale, 1 / w.sum, c};
      const double moment = (sum_lanes(dot[2 * k + 1]) - c * w.sum_square) * (2 / kLog2E);
      // Without a neighbour there is nothing that sigma could change (and 1 / sigma may overflow).
      const bool alone = w.sum_square == 0;
      dsigma[own.target] = alone ? T{0} : static_cast<T>(moment / w.sum / static_cast<double>(in_.sigma[own.target]));
    }
  }

  // dx and dl. Sums over targets are kept in double: x_j . dx_j and sum_i p_ij c_i nearly cancel where a token is all
  // that many targets see. To bound the memory this takes, a long sequence goes half of its channels at a time. What
  // rounding leaves of the sum of dl over the sequence, which is 0, is taken off each token in proportion to
  // sum_i p_ij.
  void collect(const S* dy, S* dx, T* dl, const T* dsigma) {
    const std::int64_t step = kChunk * kLanes<T>;
    const bool whole = in_.channels <= step || in_.tokens * in_.channels <= kSmall;
    const std::int64_t width = whole ? in_.channels : ((in_.channels + 1) / 2 + step - 1) / step * step;
    Buffer<double> sums(in_.tokens * width);
    Buffer<double> scalars(in_.tokens * 2);  // sum_i p_ij c_i and sum_i p_ij
    Buffer<double> scores(in_.tokens);       // x_j . dx_j
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
    double residue = 0;
    double mass = 0;
    for (std::int64_t j = 0; j < in_.tokens; ++j) {
      if (scalars[2 * j + 1] == 0) scores[j] = scalars[2 * j] = 0;  // no target's source: x may hold anything
      // Not a number where a weight or a feature is none, perhaps after the last target that counts: not for the rest.
      if (!std::isfinite(scores[j] - scalars[2 * j])) continue;
      residue += scores[j] - scalars[2 * j];
      mass += scalars[2 * j + 1];
    }
    const double per_mass = mass > 0 ? residue / mass : 0;
    for (std::int64_t j = 0; j < in_.tokens; ++j) {
      dl[j] = static_cast<T>(scores[j] - scalars[2 * j] - per_mass * scalars[2 * j + 1]);
    }
  }

  void clear(double* values, std::int64_t count) const {
    parallel_.run(count, 1 << 18, [&](std::int64_t begin, std::int64_t end) {
      std::memset(values + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(double));
    });
  }

  // Each target's share goes to its sources. Tokens and blocks are dealt out to threads; each walks over all targets
  // in order and adds to its own only. Groups are formed as if there were one owner, so that what is added up before it
  // reaches a row does not depend on the number of threads.
  void spread(const S* dy, std::int64_t channels, GradientNodes<T>& nodes, const Rows<double>& rows, double* scalars) {
    const std::int64_t owners = in_.tokens < 256 ? 1 : parallel_.threads;
    parallel_.run(owners, 1, [&](std::int64_t first, std::int64_t past) {
      Workspace work(source_input());
      const std::int64_t own_begin = in_.tokens * first / owners;
      const std::int64_t own_end = in_.tokens * past / owners;
      for (std::int64_t tile = 0; tile < in_.targets; tile += kTile) {
        if (!reaches(tile, own_begin, own_end)) continue;
        work.count = 0;
        for (std::int64_t m = tile; m < std::min(tile + kTile, in_.targets); ++m) {
          const Plan& plan = plans_[m];
          if (plan.begin >= plan.end) continue;
          Prepared<T>& own = work.tile[work.count];
          own.target = m;
          own.cover.assign(plan, shape_, in_.causal, p, own_begin, own_end);
          if (own.cover.rows() > 0) {
            work.weigher.weigh(own.cover, position(m), in_.sigma[m], states_[m].scale, states_[m].inverse, own.weights);
            if (scalars != nullptr) spread_scalars(own, nodes, scalars);
          }
          work.live[work.count] = work.count;
          ++work.count;
        }
        for (const Group& group : Groups<T>(work.tile, work.live, work.count, kGroup, p)) {
          spread_group(work, group, clip(group.segment, own_begin, own_end), dy, channels, nodes, rows);
        }
      }
    });
  }

  // Whether any target of a tile has sources in begin..end.
  bool reaches(std::int64_t tile, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t m = tile; m < std::min(tile + kTile, in_.targets); ++m) {
      if (plans_[m].begin < std::min(plans_[m].end, end) && plans_[m].end > begin) return true;
    }
    return false;
  }

  void spread_scalars(const Prepared<T>& own, GradientNodes<T>& nodes, double* scalars) const {
    const double mean = states_[own.target].mean;
    for (const Segment& s : own.cover) {
      const T* w = own.weights.weight.data() + s.offset;
      double* out = s.level < 0 ? scalars + 2 * s.at : nodes.scalar(shape_.index(s.level, s.at));
      for (std::int64_t r = 0; r < s.rows; ++r) {
        if (w[r] == 0) continue;
        out[2 * r] += static_cast<double>(w[r]) * mean;
        out[2 * r + 1] += static_cast<double>(w[r]);
      }
    }
  }

  // `all` is the owned part of the group's segment.
  void spread_group(Workspace& work, const Group& group, const Segment& all, const S* dy, std::int64_t channels,
                    GradientNodes<T>& nodes, const Rows<double>& tokens) {
    const auto weight_of = [&](int k) { return work.tile[group.member[k]].weights.weight.data(); };
    const auto rows_of = [&](const Segment& s) {
      return s.level < 0 ? Rows<double>{tokens.row(s.at), tokens.stride, s.count}
                         : nodes.of(shape_.index(s.level, s.at), s.count);
    };
    if (group.count > 1) pad_group(work, group, all, 1, weight_of);
    for_chunks<T, kChunk>(channels, [&](const auto& chunk) {
      using C = std::decay_t<decltype(chunk)>;
      Vec<T> value[kGroup][C::kVectors] = {};
      for (int k = 0; k < group.count; ++k) {
        const S* g = dy + work.tile[group.member[k]].target * in_.channels;
        for (int v = 0; v < C::kVectors; ++v) value[k][v] = chunk.load_at(g, v);
      }
      const bool together = group.count > 1 && all_finite(&value[0][0], group.count * C::kVectors);
      if (together) {
        with_streams(group.count,
                     [&](auto count) { spread_rows_group<count()>(chunk, rows_of(all), work.streams, value); });
      }
      for (int k = 0; k < group.count; ++k) {
        const Cover& cover = work.tile[group.member[k]].cover;
        for (const Segment& s : cover) {
          if (together && &s == cover.main()) continue;
          spread_rows(chunk, rows_of(s), weight_of(k) + s.offset, value[k]);
        }
      }
    });
  }

  // Tokens whose gradient a size that is no number has spoiled: every one it could have reached.
  std::int64_t spoiled_tokens(const T* dsigma) const {
    std::int64_t tokens = 0;
    for (std::int64_t m = 0; m < in_.targets; ++m) {
      if (is_nan(m) && dsigma[m] != 0) tokens = in_.causal ? position(m) + 1 : in_.tokens;
    }
    return tokens;
  }

  // Writes channels first.. of dx in the type it is stored in and adds their part of x_j . dx_j.
  void store_channels(std::int64_t first, std::int64_t channels, const Rows<double>& sums, S* dx, double* scores,
                      std::int64_t spoiled) const {
    parallel_.run(in_.tokens, 1 + 65536 / (channels + 1), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin; j < end; ++j) {
        const bool masked = bits_[j] == -kInfinity;
        const double poison = j < spoiled && !masked ? std::numeric_limits<double>::quiet_NaN() : 0;
        Vec<double> dot = {};
        for_chunks<double, 1>(channels, [&](const auto& chunk) {
          const auto g = chunk.load_at(sums.row(j), 0) + poison;
          if (!masked) dot += g * chunk.load_double_at(in_.x.row(j) + first, 0);
          chunk.store_double_at(dx + j * in_.channels + first, 0, g);
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
  Buffer<State> states_;
  std::optional<Masses<T>> masses_;
  std::optional<SourceNodes<T>> sources_;
  int highest_ = -1;
};

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
