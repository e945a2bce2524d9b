// cpu::pool2d and its backward on plain memory: the accuracy contract over the covering list and where a window that
// drops sources would break first; the same bits for any number of threads, either order of the features, any batch.
#include "kernels/cpu/pool2d.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/pool2d_arch.h"
#include "pool1d_run.h"
#include "pool2d_cases.h"

namespace contextpool::testing {
namespace {

// [B, P, C] to [B, C, P] or back.
std::vector<double> swapped(const std::vector<double>& v, std::int64_t batch, std::int64_t rows, std::int64_t columns) {
  std::vector<double> out(v.size());
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        out[static_cast<std::size_t>((b * columns + c) * rows + r)] =
            v[static_cast<std::size_t>((b * rows + r) * columns + c)];
      }
    }
  }
  return out;
}

std::vector<std::byte> channels_last(const std::vector<std::byte>& memory, const Case2d& c, std::int64_t pixels) {
  if (c.channels_last) return memory;
  return packed(c.type, swapped(unpacked(c.type, memory), c.batch, c.channels, pixels));
}

struct MapKernels {
  decltype(&cpu::pool2d) forward = cpu::pool2d;
  decltype(&cpu::pool2d_backward) backward = cpu::pool2d_backward;
};

// The outputs with channels last, whatever order the case asks for.
Bytes run(const Problem2d& p, const cpu::Parallel& parallel, const MapKernels& kernels = {}) {
  const auto& c = p.spec;
  const Type fine = weight_type(c.type);
  const auto features = [&](const std::vector<double>& v, std::int64_t pixels) {
    return packed(c.type, c.channels_last ? v : swapped(v, c.batch, pixels, c.channels));
  };
  const auto x = features(p.x, c.pixels());
  const auto dy = features(p.dy, c.targets());
  const auto log_weight = packed(fine, p.log_weight);
  const auto sigma = packed(fine, p.sigma);
  cpu::Pool2d in;
  in.batch = c.batch;
  in.channels = c.channels;
  in.height = c.height;
  in.width = c.width;
  in.out_height = c.out_height();
  in.out_width = c.out_width();
  in.stride_h = c.stride_h;
  in.stride_w = c.stride_w;
  in.channels_last = c.channels_last;
  in.algorithm = c.algorithm;
  in.type = c.type;
  in.x = x.data();
  in.log_weight = log_weight.data();
  in.sigma = sigma.data();
  Guarded y(dy.size());
  Guarded dx(x.size());
  Guarded dlog_weight(log_weight.size());
  Guarded dsigma(sigma.size());
  kernels.forward(in, y.data(), parallel);
  kernels.backward(in, dy.data(), dx.data(), dlog_weight.data(), dsigma.data(), parallel);
  return {channels_last(y.take(), c, c.targets()), channels_last(dx.take(), c, c.pixels()), dlog_weight.take(),
          dsigma.take()};
}

void expect_right(const Problem2d& p) { expect_accurate(p, values_of(run(p, threads(2)), p.spec.type)); }

class KernelPool2d : public ::testing::TestWithParam<Case2d> {};

TEST_P(KernelPool2d, IsAccurate) { expect_right(make_problem(GetParam())); }

const auto case_name = [](const auto& info) { return name(info.param); };
INSTANTIATE_TEST_SUITE_P(Covering, KernelPool2d, ::testing::ValuesIn(covering_cases_2d(1)), case_name);

// The kernels of every instruction set this machine has, not only of the one that would be picked.
TEST(MapInstructionSets, AreAccurate) {
  std::vector<std::pair<std::string, MapKernels>> list = {
      {"portable", {cpu::portable::pool2d, cpu::portable::pool2d_backward}}};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    list.push_back({"avx2", {cpu::avx2::pool2d, cpu::avx2::pool2d_backward}});
  }
#endif
  for (const auto& [set, kernels] : list) {
    SCOPED_TRACE(set);
    for (const auto& c : covering_cases_2d(2)) {
      if (c.pixels() > 1000) continue;  // the portable one takes its time
      SCOPED_TRACE(name(c));
      const Problem2d p = make_problem(c);
      expect_accurate(p, values_of(run(p, threads(2), kernels), c.type));
    }
  }
}

// Hard maps in float32 and float64 (half types are coarser), each with every algorithm.
class HardMap : public ::testing::TestWithParam<Type> {
 protected:
  static Case2d spec(std::int64_t height, std::int64_t width) {
    Case2d c;
    c.height = height;
    c.width = width;
    c.channels = 2;
    c.type = GetParam();
    c.logits = Logits::equal;
    return c;
  }

  static void expect_right_by_all(Problem2d& p) {
    round_inputs(p);
    for (const auto algorithm : kMapAlgorithms) {
      SCOPED_TRACE(name(algorithm));
      p.spec.algorithm = algorithm;
      expect_right(p);
    }
  }

  static constexpr std::array kSizes = {0.4, 1.0, 2.8, 7.99, 30.0};
};

TEST_P(HardMap, HeavyPatchIsSeenFromEveryDistanceUpToTheEdgeOfTheSupport) {
  for (const double sigma : kSizes) {
    for (const std::int64_t side : {1, 4}) {
      SCOPED_TRACE("sigma " + std::to_string(sigma) + ", patch of " + std::to_string(side));
      Problem2d p = make_problem(spec(41, 37));
      Random random(static_cast<std::uint64_t>(side));
      for (double& v : p.log_weight) v = random.uniform(-20, -19.5);
      for (std::int64_t i = 0; i < side; ++i) {
        std::fill_n(p.log_weight.begin() + (20 + i) * 37 + 11, side, 20.0);
      }
      std::fill(p.sigma.begin(), p.sigma.end(), sigma);
      expect_right_by_all(p);
    }
  }
}

TEST_P(HardMap, LightPatchAmongHeavyPixelsIsNotDrownedByThem) {
  for (const double sigma : kSizes) {
    SCOPED_TRACE("sigma " + std::to_string(sigma));
    Problem2d p = make_problem(spec(41, 37));
    Random random(3);
    for (double& v : p.log_weight) v = random.uniform(19.5, 20);
    for (std::int64_t i = 8; i < 30; ++i) std::fill_n(p.log_weight.begin() + i * 37 + 9, 20, -20.0);
    std::fill(p.sigma.begin(), p.sigma.end(), sigma);
    expect_right_by_all(p);
  }
}

// The gradient of a weight is then a small difference, which must not drown in what the features have in common.
TEST_P(HardMap, LargeFeaturesThatDifferLittle) {
  if (GetParam() == Type::f64) return;  // the reference cancels too
  for (const double sigma : {2.8, kInf}) {
    SCOPED_TRACE("sigma " + std::to_string(sigma));
    Case2d c = spec(32, 32);
    c.logits = Logits::spread_5;
    Problem2d p = make_problem(c);
    for (double& v : p.x) v = 100 + 1e-3 * v;
    for (const auto m : p.visited) std::fill_n(p.dy.begin() + m * 2, 2, 1.0);
    std::fill(p.sigma.begin(), p.sigma.end(), sigma);
    expect_right_by_all(p);
  }
}

// Soft masks: weights that float32 can only just hold, or not at all.
TEST_P(HardMap, PixelsOfNextToNoWeight) {
  for (const double light : {-60.0, -69.0, -80.0, -90.0, -100.0}) {
    SCOPED_TRACE("weight " + std::to_string(light));
    Problem2d p = make_problem(spec(20, 25));
    for (std::size_t j = 0; j < 500; ++j) p.log_weight[j] = j / 7 % 2 == 0 ? light : 0;
    std::fill(p.sigma.begin(), p.sigma.end(), 2.8);
    expect_right_by_all(p);
  }
}

// What the gradient of sigma is made of lies far out: next to nothing in the sum of weights, but all of the second
// moment.
TEST_P(HardMap, SizeOfAHeavyTargetHasItsGradientFromAHeavyPixelFarAway) {
  for (const double sigma : kSizes) {
    for (const double distance : {0.0, 7.5, 9.5, 12.0}) {
      SCOPED_TRACE("sigma " + std::to_string(sigma) + ", distance " + std::to_string(distance));
      Problem2d p = make_problem(spec(33, 61));
      Random random(4);
      for (double& v : p.log_weight) v = random.uniform(-20, -18);
      p.visited = {16 * 61 + 10};
      p.log_weight[16 * 61 + 10] = 20;
      p.log_weight[static_cast<std::size_t>(16 * 61 + std::min(60L, 10 + std::lround(distance * sigma)))] = 20;
      std::fill(p.sigma.begin(), p.sigma.end(), sigma);
      std::fill(p.dy.begin(), p.dy.end(), 0.0);
      p.dy[static_cast<std::size_t>(p.visited[0] * 2)] = 1;
      expect_right_by_all(p);
    }
  }
}

TEST_P(HardMap, TargetsInAHoleOfPaddingAverageTheSourcesAtItsRim) {
  for (const double sigma : {1.0, 2.0}) {
    SCOPED_TRACE("sigma " + std::to_string(sigma));
    Problem2d p = make_problem(spec(61, 61));
    for (std::int64_t j = 0; j < 61 * 61; ++j) {
      const std::int64_t i = j / 61;
      const auto di = static_cast<double>(i - 30), dj = static_cast<double>(j % 61 - 30);
      if (di * di + dj * dj >= 150 * sigma * sigma) continue;  // its middle is 12.2 sigma from the rim
      p.log_weight[static_cast<std::size_t>(j)] = -kInf;
      std::fill_n(p.x.begin() + j * 2, 2, j % 2 == 0 ? kNaN : kInf);
    }
    std::fill(p.sigma.begin(), p.sigma.end(), sigma);
    p.visited = {30 * 61 + 30, 30 * 61 + 31, 0};
    Random random(9);
    std::fill(p.dy.begin(), p.dy.end(), 0.0);
    for (const auto m : p.visited) {
      for (int d = 0; d < 2; ++d) p.dy[static_cast<std::size_t>(m * 2 + d)] = random.normal();
    }
    expect_right_by_all(p);
  }
}

TEST_P(HardMap, SupportEndsWhereDistanceSquaredExceeds160SigmaSquared) {
  // One live source, (3, 4) away from the target: at the edge when sigma is 5 / sqrt(160).
  Problem2d p = make_problem(spec(8, 8));
  std::fill(p.log_weight.begin(), p.log_weight.end(), -kInf);
  p.log_weight[4 * 8 + 5] = 0;
  for (const double margin : {1e-3, -1e-3}) {
    std::fill(p.sigma.begin(), p.sigma.end(), 5 / std::sqrt(160.0) * (1 + margin));
    expect_right_by_all(p);
    const auto got = values_of(run(p, serial()), p.spec.type);
    const double y = got.y[(1 * 8 + 1) * 2];
    const double x = p.x[(4 * 8 + 5) * 2];
    EXPECT_EQ(y, margin > 0 ? x : 0);
  }
}

const auto type_name = [](const ::testing::TestParamInfo<Type>& info) { return name(info.param); };
INSTANTIATE_TEST_SUITE_P(All, HardMap, ::testing::Values(Type::f32, Type::f64), type_name);

class KernelBits2d : public ::testing::TestWithParam<std::tuple<Algorithm, Type>> {
 protected:
  static Problem2d problem(std::int64_t batch, std::int64_t height, std::int64_t width, std::int64_t channels) {
    Case2d c;
    std::tie(c.algorithm, c.type) = GetParam();
    c.batch = batch;
    c.height = height;
    c.width = width;
    c.channels = channels;
    c.logits = Logits::heavy_clusters;
    c.mask = Mask::random;
    Problem2d p = make_problem(c);
    Random random(3);
    for (double& v : p.dy) v = round_to(c.type, random.normal());  // every target's share of the sums counts here
    return p;
  }
};

TEST_P(KernelBits2d, AreTheSameForAnyThreads) {
  for (const std::int64_t batch : {1, 3, 7}) {
    const Problem2d p = problem(batch, batch == 1 ? 31 : 11, 19, 18);
    const Bytes once = run(p, serial());
    EXPECT_EQ(run(p, serial()), once) << "a second run differs";
    for (const int count : {2, 3, 5}) EXPECT_EQ(run(p, threads(count)), once) << count << " threads differ from one";
    for (const int count : {1, 4}) EXPECT_EQ(run(p, uneven_backwards(count)), once) << "uneven pieces differ";
  }
}

TEST_P(KernelBits2d, AreTheSameForEitherOrderOfTheFeatures) {
  Problem2d p = problem(2, 15, 22, 37);
  const Bytes first = run(p, threads(2));
  p.spec.channels_last = true;
  EXPECT_EQ(run(p, threads(2)), first);
}

std::string bits_name(const ::testing::TestParamInfo<KernelBits2d::ParamType>& info) {
  return std::string(name(std::get<0>(info.param))) + "_" + name(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, KernelBits2d,
                         ::testing::Combine(::testing::ValuesIn(kMapAlgorithms), ::testing::ValuesIn(kTypes)),
                         bits_name);

}  // namespace
}  // namespace contextpool::testing
