// cpu::pool2d and its backward on plain memory: the accuracy contract over the covering list; the same bits for any
// number of threads, either order of the features, any batch.
#include "kernels/cpu/pool2d.h"

#include <gtest/gtest.h>

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
  Pool2d in;
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
