// One map through pool2d, forward and backward, as rows of channels.
//
//   y_i       = sum_j p_ij x_j
//   dx_j      = sum_i p_ij dy_i
//   dl_j      = x_j . dx_j - sum_i p_ij c_i,                                           c_i = dy_i . y_i
//   dsigma_i  = (dy_i . sum_j p_ij r_ij x_j - c_i sum_j p_ij r_ij) / sigma_i,          r_ij = d_ij^2 / sigma_i^2
//
// The gradients of l and sigma stay the same if a row is taken off all x_j, so the backward takes off a row like them,
// the origin: of large features that differ little, or of one that outweighs the rest, the differences count.
//
// Every sum over sources runs over a disc of pool2d_window.h, image row by image row. Each number is computed by one
// thread, in an order that depends on nothing but the target (or, for sums over targets, on their order), so the bits
// do not depend on the number of threads.
#pragma once

#include <cstring>

#include "kernels/cpu/pool2d_window.h"

namespace contextpool::cpu::CONTEXTPOOL_ARCH {

template <class S>
struct MapInput {
  using T = typename SumOf<S>::Type;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t out_height = 0;
  std::int64_t out_width = 0;
  std::int64_t stride_h = 1;
  std::int64_t stride_w = 1;
  bool keep_all = false;
  const S* x = nullptr;  // [height * width, channels]
  const T* log_weight = nullptr;
  const T* sigma = nullptr;
};

// total += sum_r weight_r (row_r - origin), and total_square += the same with square_r. Rows of weight 0 are not read.
template <class T, class S, class C>
void add_rows_twice(const C& chunk, const Rows<const S>& rows, const T* origin, const T* weight, const T* square,
                    Vec<T>* total, Vec<T>* total_square) {
  Vec<T> zero[C::kVectors];
  for (int v = 0; v < C::kVectors; ++v) zero[v] = chunk.load_at(origin, v);
  for (std::int64_t begin = 0; begin < rows.count; begin += kFold) {
    const std::int64_t end = std::min(begin + kFold, rows.count);
    Vec<T> sum[C::kVectors] = {};
    Vec<T> sum_square[C::kVectors] = {};
    for (std::int64_t r = begin; r < end; ++r) {
      if (weight[r] == 0) continue;
      const S* row = rows.row(r);
      for (int v = 0; v < C::kVectors; ++v) {
        const auto x = chunk.load_at(row, v) - zero[v];
        sum[v] += x * weight[r];
        sum_square[v] += x * square[r];
      }
    }
    for (int v = 0; v < C::kVectors; ++v) {
      total[v] += sum[v];
      total_square[v] += sum_square[v];
    }
  }
}

template <class S>
class Map {
 public:
  using T = typename SumOf<S>::Type;

  Map(const MapInput<S>& in, const Parallel& parallel)
      : in_(in),
        parallel_(parallel),
        targets_(in.out_height * in.out_width),
        weights_(in.height, in.width, in.log_weight),
        planner_(weights_, in.keep_all) {}

  // y [targets, channels]
  void forward(S* y) {
    for_targets([&](Workspace& work, std::int64_t m) {
      S* out = y + m * in_.channels;
      const Target target = target_of(m);
      const Disc plan = is_nan(m) ? Disc{} : planner_.plan(target, false);
      if (plan.reach < 0) {
        // A NaN size has no window.
        fill(out, is_nan(m) ? in_.sigma[m] : T{0});
        return;
      }
      const auto& disc = work.template weigh<false>(*this, target, plan);
      const auto inverse = static_cast<T>(1 / disc.sum);
      for_chunks<T, kChunk>(in_.channels, [&](const auto& chunk) {
        Vec<T> sum[std::decay_t<decltype(chunk)>::kVectors] = {};
        for (const PixelRun& run : work.runs) add_rows(chunk, rows_of(run), disc.weight.data() + run.offset, sum);
        for (int v = 0; v < chunk.kVectors; ++v) chunk.store_at(out, v, sum[v] * inverse);
      });
    });
  }

  // dy [targets, channels] -> dx [pixels, channels], dl [pixels], dsigma [targets]
  void backward(const S* dy, S* dx, T* dl, T* dsigma) {
    states_.reserve(targets_);
    find_origin();
    for_targets(
        [&](Workspace& work, std::int64_t m) { dsigma[m] = score(work, m, dy + m * in_.channels, states_[m]); });
    collect(dy, dx, dl, dsigma);
  }

 private:
  static constexpr int kChunk = 4;       // vectors
  static constexpr int kGroup = 4;       // targets whose shares of dx are added together,
  static constexpr int kGroupChunk = 2;  // so many vectors at a time

  // What the backward needs to know of a target; a negative reach means that it has no share in dx and dl.
  struct State {
    std::int64_t reach = -1;
    double scale = 0;
    double inverse = 0;  // 1 / sum of weights
    double mean = 0;     // c_i
  };

  // What one thread works with.
  struct Workspace {
    Runs runs;
    DiscWeights<T> weights[kGroup];

    template <bool squares>
    const DiscWeights<T>& weigh(const Map& map, const Target& target, const Disc& plan) {
      runs.assign(target.i, target.j, target.j, plan.reach, map.weights_, 0, map.in_.height);
      weights[0].template assign<squares>(runs, target, plan.reach, map.weights_, plan.scale);
      return weights[0];
    }
  };

  bool is_nan(std::int64_t m) const { return in_.sigma[m] != in_.sigma[m]; }

  Target target_of(std::int64_t m) const {
    return {m / in_.out_width * in_.stride_h, m % in_.out_width * in_.stride_w, static_cast<double>(in_.sigma[m]),
            weights_};
  }

  Rows<const S> rows_of(const PixelRun& run) const {
    return {in_.x + (run.i * in_.width + run.j) * in_.channels, in_.channels, run.count};
  }

  // body(workspace, target) for every target.
  template <class Body>
  void for_targets(const Body& body) {
    parallel_.run(targets_, 1 + 8192 / (in_.channels + 16), [&](std::int64_t begin, std::int64_t end) {
      Workspace work;
      for (std::int64_t m = begin; m < end; ++m) body(work, m);
    });
  }

  void fill(S* row, T value) const {
    const Vec<T> all = Vec<T>{} + value;
    for_chunks<T, 1>(in_.channels, [&](const auto& chunk) { chunk.store_at(row, 0, all); });
  }

  // The features of the heaviest pixel, 0 for those that are not finite.
  void find_origin() {
    origin_.reserve(panel_width<T>(in_.channels));
    std::int64_t heaviest = 0;
    for (std::int64_t j = 1; j < in_.height * in_.width; ++j) {
      if (in_.log_weight[j] > in_.log_weight[heaviest]) heaviest = j;
    }
    copy_row(in_.channels, in_.x + heaviest * in_.channels, origin_.data());
    for (std::int64_t d = 0; d < in_.channels; ++d) origin_[d] = std::isfinite(origin_[d]) ? origin_[d] : T{0};
  }
  bool is_masked(std::int64_t j) const { return in_.log_weight[j] == -std::numeric_limits<T>::infinity(); }

  // dsigma_i, and the state that collect() needs.
  T score(Workspace& work, std::int64_t m, const S* dy, State& state) {
    state = {};
    if (all_zero(dy, in_.channels)) return 0;
    if (is_nan(m)) return in_.sigma[m];
    const Target target = target_of(m);
    const Disc plan = planner_.plan(target, true);
    if (plan.reach < 0) return 0;
    const auto& disc = work.template weigh<true>(*this, target, plan);
    Vec<double> dot = {};  // dy . sum and dy . sum_square, in double: dl is a small difference of such sums
    Vec<double> dot_square = {};
    for_chunks<T, kChunk>(in_.channels, [&](const auto& chunk) {
      constexpr int vectors = std::decay_t<decltype(chunk)>::kVectors;
      Vec<T> sum[vectors] = {};
      Vec<T> sum_square[vectors] = {};
      for (const PixelRun& run : work.runs) {
        add_rows_twice(chunk, rows_of(run), origin_.data(), disc.weight.data() + run.offset,
                       disc.square.data() + run.offset, sum, sum_square);
      }
      for (int v = 0; v < vectors; ++v) {
        const Vec<T> g = chunk.load_at(dy, v);
        add_dot(g, sum[v], dot);
        add_dot(g, sum_square[v], dot_square);
      }
    });
    const double c = sum_lanes(dot) / disc.sum;
    const double log2_sum = plan.scale + std::log2(disc.sum);
    state = {planner_.shrink(target, plan, log2_sum), plan.scale, 1 / disc.sum, c};
    // Without a neighbour there is nothing that sigma could change (and 1 / sigma may overflow).
    if (disc.sum_square == 0) return 0;
    const double moment = (sum_lanes(dot_square) - c * disc.sum_square) * (2 / kLog2E);
    return static_cast<T>(moment / disc.sum / static_cast<double>(in_.sigma[m]));
  }

  static void add_dot(const Vec<T>& a, const Vec<T>& b, Vec<double>& sum) {
    T left[kLanes<T>];
    T right[kLanes<T>];
    store(left, a);
    store(right, b);
    for (int k = 0; k < kLanes<T>; k += kLanes<double>) sum += load_double(left + k) * load_double(right + k);
  }

  // dx and dl. Sums over targets are kept in double: x_j . dx_j and sum_i p_ij c_i nearly cancel where a pixel is all
  // that many targets see. Image rows are dealt out to threads; each walks over all targets in order and adds to its
  // own rows only.
  void collect(const S* dy, S* dx, T* dl, const T* dsigma) {
    const std::int64_t pixels = in_.height * in_.width;
    Buffer<double> sums(pixels * in_.channels);
    Buffer<double> means(pixels);  // sum_i p_ij c_i
    const bool spoiled = any_spoiled(dsigma);
    const std::int64_t owners = std::min<std::int64_t>(in_.height, pixels < 256 ? 1 : parallel_.threads);
    parallel_.run(owners, 1, [&](std::int64_t first, std::int64_t past) {
      const std::int64_t begin = in_.height * first / owners;
      const std::int64_t end = in_.height * past / owners;
      const std::int64_t own = (end - begin) * in_.width;
      std::memset(sums.data() + begin * in_.width * in_.channels, 0,
                  static_cast<std::size_t>(own * in_.channels) * sizeof(double));
      std::memset(means.data() + begin * in_.width, 0, static_cast<std::size_t>(own) * sizeof(double));
      Workspace work;
      for (std::int64_t m = 0; m < targets_;) {
        const int count = joined(m) ? kGroup : 1;
        spread(work, m, count, begin, end, dy, sums.data(), means.data());
        m += count;
      }
      for (std::int64_t j = begin * in_.width; j < end * in_.width; ++j) {
        dl[j] = finish(j, sums.data() + j * in_.channels, means[j], spoiled, dx + j * in_.channels);
      }
    });
  }

  // Whether targets m .. m + kGroup - 1, neighbours in a row, are spread together: not if the rows that only some of
  // them need are the larger part. Depends on the targets alone, so that the bits do not depend on who owns what.
  bool joined(std::int64_t m) const {
    const std::int64_t column = m % in_.out_width;
    if (column % kGroup != 0 || column + kGroup > in_.out_width) return false;
    double most = 0;
    double sum = 0;
    for (std::int64_t k = m; k < m + kGroup; ++k) {
      if (states_[k].reach < 0) return false;
      const auto reach = static_cast<double>(states_[k].reach);
      most = std::max(most, reach);
      sum += reach;
    }
    const auto apart = static_cast<double>((kGroup - 1) * in_.stride_w);
    return kGroup * (most + 2 / M_PI * std::sqrt(most) * apart) <= 1.6 * sum;
  }

  // Adds the shares of targets m .. m + count - 1 to image rows begin..end of the sums.
  void spread(Workspace& work, std::int64_t m, int count, std::int64_t begin, std::int64_t end, const S* dy,
              double* sums, double* means) const {
    std::int64_t reach = -1;
    for (int k = 0; k < count; ++k) reach = std::max(reach, states_[m + k].reach);
    const Target first = target_of(m);
    work.runs.assign(first.i, first.j, first.j + (count - 1) * in_.stride_w, reach, weights_, begin, end);
    if (work.runs.size() == 0) return;
    for (int k = 0; k < count; ++k) {
      const State& state = states_[m + k];
      work.weights[k].template assign<false>(work.runs, target_of(m + k), state.reach, weights_, state.scale,
                                             state.inverse);
      spread_mean(work.runs, work.weights[k].weight.data(), state.mean, means);
    }
    if (count == kGroup) {
      for_chunks<T, kGroupChunk>(in_.channels,
                                 [&](const auto& chunk) { spread_group(chunk, work, dy + m * in_.channels, sums); });
    } else {
      for_chunks<T, kChunk>(in_.channels, [&](const auto& chunk) {
        spread_one(chunk, work.runs, work.weights[0].weight.data(), dy + m * in_.channels, sums);
      });
    }
  }

  void spread_mean(const Runs& runs, const T* weights, double mean, double* means) const {
    for (const PixelRun& run : runs) {
      const T* weight = weights + run.offset;
      double* out = means + run.i * in_.width + run.j;
      for (std::int64_t k = 0; k < run.count; ++k) {
        if (weight[k] != 0) out[k] += static_cast<double>(weight[k]) * mean;
      }
    }
  }

  Rows<double> sums_of(const PixelRun& run, double* sums) const {
    return {sums + (run.i * in_.width + run.j) * in_.channels, in_.channels, run.count};
  }

  template <class C>
  void spread_one(const C& chunk, const Runs& runs, const T* weights, const S* dy, double* sums) const {
    Vec<T> value[C::kVectors];
    for (int v = 0; v < C::kVectors; ++v) value[v] = chunk.load_at(dy, v);
    for (const PixelRun& run : runs) spread_rows(chunk, sums_of(run, sums), weights + run.offset, value);
  }

  // A value that is not finite must not be multiplied by the weights of 0 that others have: then each target goes
  // alone.
  template <class C>
  void spread_group(const C& chunk, const Workspace& work, const S* dy, double* sums) const {
    Vec<T> value[kGroup][C::kVectors];
    Vec<T> rest = {};
    for (int k = 0; k < kGroup; ++k) {
      for (int v = 0; v < C::kVectors; ++v) {
        value[k][v] = chunk.load_at(dy + k * in_.channels, v);
        rest += value[k][v] - value[k][v];
      }
    }
    if (sum_lanes(rest) == 0) {
      for (const PixelRun& run : work.runs) {
        const T* weights[kGroup];
        for (int k = 0; k < kGroup; ++k) weights[k] = work.weights[k].weight.data() + run.offset;
        spread_rows_group<kGroup>(chunk, sums_of(run, sums), weights, value);
      }
      return;
    }
    for (int k = 0; k < kGroup; ++k) {
      spread_one(chunk, work.runs, work.weights[k].weight.data(), dy + k * in_.channels, sums);
    }
  }

  // A NaN size spoils the gradient of every pixel: each might have been in its window.
  bool any_spoiled(const T* dsigma) const {
    for (std::int64_t m = 0; m < targets_; ++m) {
      if (is_nan(m) && dsigma[m] != 0) return true;
    }
    return false;
  }

  // Writes dx_j in the type it is stored in and returns dl_j.
  T finish(std::int64_t j, const double* sums, double mean, bool spoiled, S* dx) const {
    const bool masked = is_masked(j);
    const double poison = spoiled && !masked ? std::numeric_limits<double>::quiet_NaN() : 0;
    Vec<double> dot = {};
    for_chunks<double, 1>(in_.channels, [&](const auto& chunk) {
      const auto g = chunk.load_at(sums, 0) + poison;
      const auto zero = chunk.load_double_at(origin_.data(), 0);
      if (!masked) dot += g * (chunk.load_double_at(in_.x + j * in_.channels, 0) - zero);
      chunk.store_double_at(dx, 0, g);
    });
    return masked ? T{0} : static_cast<T>(sum_lanes(dot) - mean);
  }

  MapInput<S> in_;
  const Parallel& parallel_;
  std::int64_t targets_;
  WeightMap weights_;
  DiscPlanner<T> planner_;
  Buffer<State> states_;
  Buffer<T> origin_;
};

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
