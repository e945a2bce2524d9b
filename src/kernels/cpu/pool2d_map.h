// One map through pool2d, forward and backward, as rows of channels.
//
//   y_i       = sum_j p_ij x_j
//   dx_j      = sum_i p_ij dy_i
//   dl_j      = x_j . dx_j - sum_i p_ij c_i,                                           c_i = dy_i . y_i
//   dsigma_i  = (dy_i . sum_j p_ij r_ij x_j - c_i sum_j p_ij r_ij) / sigma_i,          r_ij = d_ij^2 / sigma_i^2
//
// Every sum over sources runs over a disc of pool2d_window.h, image row by image row. Each number is computed by one
// thread, in an order that depends on nothing but the target (or, for sums over targets, on their order), so the bits do
// not depend on the number of threads.
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

// total += sum_r weight_r row_r and total_square += sum_r square_r row_r. Rows of weight 0 are not read.
template <class T, class S, class C>
void add_rows_twice(const C& chunk, const Rows<const S>& rows, const T* weight, const T* square, Vec<T>* total,
                    Vec<T>* total_square) {
  for (std::int64_t begin = 0; begin < rows.count; begin += kFold) {
    const std::int64_t end = std::min(begin + kFold, rows.count);
    Vec<T> sum[C::kVectors] = {};
    Vec<T> sum_square[C::kVectors] = {};
    for (std::int64_t r = begin; r < end; ++r) {
      if (weight[r] == 0) continue;
      const S* row = rows.row(r);
      for (int v = 0; v < C::kVectors; ++v) {
        const auto x = chunk.load_at(row, v);
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
    for_targets([&](DiscWeights<T>& disc, std::int64_t m) {
      S* out = y + m * in_.channels;
      const Target target = target_of(m);
      const Disc plan = is_nan(m) ? Disc{} : planner_.plan(target, false);
      if (plan.reach < 0) {
        // A size that is no number has no window.
        fill(out, is_nan(m) ? in_.sigma[m] : T{0});
        return;
      }
      disc.assign(target, plan.reach, weights_, 0, in_.height);
      disc.template weigh<false>(target, weights_, plan.scale);
      const auto inverse = static_cast<T>(1 / disc.sum());
      for_chunks<T, kChunk>(in_.channels, [&](const auto& chunk) {
        Vec<T> sum[std::decay_t<decltype(chunk)>::kVectors] = {};
        for (const Run& run : disc) add_rows(chunk, rows_of(run), disc.weight(run), sum);
        for (int v = 0; v < chunk.kVectors; ++v) chunk.store_at(out, v, sum[v] * inverse);
      });
    });
  }

  // dy [targets, channels] -> dx [pixels, channels], dl [pixels], dsigma [targets]
  void backward(const S* dy, S* dx, T* dl, T* dsigma) {
    states_.reserve(targets_);
    for_targets([&](DiscWeights<T>& disc, std::int64_t m) {
      dsigma[m] = score(disc, m, dy + m * in_.channels, states_[m]);
    });
    collect(dy, dx, dl, dsigma);
  }

 private:
  static constexpr int kChunk = 4;  // vectors

  // What the backward needs of a target again; a negative reach means that it has no share in dx and dl.
  struct State {
    std::int64_t reach = -1;
    double scale = 0;
    double inverse = 0;  // 1 / sum of weights
    double mean = 0;     // c_i
  };

  bool is_nan(std::int64_t m) const { return in_.sigma[m] != in_.sigma[m]; }

  Target target_of(std::int64_t m) const {
    return {m / in_.out_width * in_.stride_h, m % in_.out_width * in_.stride_w, static_cast<double>(in_.sigma[m]),
            weights_};
  }

  Rows<const S> rows_of(const Run& run) const {
    return {in_.x + (run.i * in_.width + run.j) * in_.channels, in_.channels, run.count};
  }

  // body(workspace, target) for every target.
  template <class Body>
  void for_targets(const Body& body) {
    parallel_.run(targets_, 1 + 8192 / (in_.channels + 16), [&](std::int64_t begin, std::int64_t end) {
      DiscWeights<T> disc;
      for (std::int64_t m = begin; m < end; ++m) body(disc, m);
    });
  }

  void fill(S* row, T value) const {
    const Vec<T> all = Vec<T>{} + value;
    for_chunks<T, 1>(in_.channels, [&](const auto& chunk) { chunk.store_at(row, 0, all); });
  }

  // dsigma_i, and the state that collect() needs.
  T score(DiscWeights<T>& disc, std::int64_t m, const S* dy, State& state) {
    state = {};
    if (all_zero(dy, in_.channels)) return 0;
    if (is_nan(m)) return in_.sigma[m];
    const Target target = target_of(m);
    const Disc plan = planner_.plan(target, true);
    if (plan.reach < 0) return 0;
    disc.assign(target, plan.reach, weights_, 0, in_.height);
    disc.template weigh<true>(target, weights_, plan.scale);
    Vec<double> dot = {};  // dy . sum and dy . sum_square, in double: dl is a small difference of such sums
    Vec<double> dot_square = {};
    for_chunks<T, kChunk>(in_.channels, [&](const auto& chunk) {
      constexpr int vectors = std::decay_t<decltype(chunk)>::kVectors;
      Vec<T> sum[vectors] = {};
      Vec<T> sum_square[vectors] = {};
      for (const Run& run : disc) {
        add_rows_twice(chunk, rows_of(run), disc.weight(run), disc.square(run), sum, sum_square);
      }
      for (int v = 0; v < vectors; ++v) {
        const Vec<T> g = chunk.load_at(dy, v);
        add_dot(g, sum[v], dot);
        add_dot(g, sum_square[v], dot_square);
      }
    });
    const double c = sum_lanes(dot) / disc.sum();
    const double log2_sum = plan.scale + std::log2(disc.sum());
    state = {planner_.shrink(target, plan, log2_sum), plan.scale, 1 / disc.sum(), c};
    // Without a neighbour there is nothing that sigma could change (and 1 / sigma may overflow).
    if (disc.sum_square() == 0) return 0;
    const double moment = (sum_lanes(dot_square) - c * disc.sum_square()) * (2 / kLog2E);
    return static_cast<T>(moment / disc.sum() / static_cast<double>(in_.sigma[m]));
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
      DiscWeights<T> disc;
      for (std::int64_t m = 0; m < targets_; ++m) {
        const State& state = states_[m];
        if (state.reach < 0) continue;
        const Target target = target_of(m);
        disc.assign(target, state.reach, weights_, begin, end);
        disc.template weigh<false>(target, weights_, state.scale, state.inverse);
        spread(disc, dy + m * in_.channels, state.mean, sums.data(), means.data());
      }
      for (std::int64_t j = begin * in_.width; j < end * in_.width; ++j) {
        dl[j] = finish(j, sums.data() + j * in_.channels, means[j], spoiled, dx + j * in_.channels);
      }
    });
  }

  void spread(const DiscWeights<T>& disc, const S* dy, double mean, double* sums, double* means) const {
    for (const Run& run : disc) {
      const T* weight = disc.weight(run);
      double* out = means + run.i * in_.width + run.j;
      for (std::int64_t k = 0; k < run.count; ++k) {
        if (weight[k] != 0) out[k] += static_cast<double>(weight[k]) * mean;
      }
    }
    for_chunks<T, kChunk>(in_.channels, [&](const auto& chunk) {
      Vec<T> value[std::decay_t<decltype(chunk)>::kVectors];
      for (int v = 0; v < chunk.kVectors; ++v) value[v] = chunk.load_at(dy, v);
      for (const Run& run : disc) {
        const Rows<double> rows{sums + (run.i * in_.width + run.j) * in_.channels, in_.channels, run.count};
        spread_rows(chunk, rows, disc.weight(run), value);
      }
    });
  }

  // A size that is no number spoils the gradient of every pixel: each might have been in its window.
  bool any_spoiled(const T* dsigma) const {
    for (std::int64_t m = 0; m < targets_; ++m) {
      if (is_nan(m) && dsigma[m] != 0) return true;
    }
    return false;
  }

  // Writes dx_j in the type it is stored in and returns dl_j.
  T finish(std::int64_t j, const double* sums, double mean, bool spoiled, S* dx) const {
    const bool masked = in_.log_weight[j] == -std::numeric_limits<T>::infinity();
    const double poison = spoiled && !masked ? std::numeric_limits<double>::quiet_NaN() : 0;
    Vec<double> dot = {};
    for_chunks<double, 1>(in_.channels, [&](const auto& chunk) {
      const auto g = chunk.load_at(sums, 0) + poison;
      if (!masked) dot += g * chunk.load_double_at(in_.x + j * in_.channels, 0);
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
};

}  // namespace contextpool::cpu::CONTEXTPOOL_ARCH
