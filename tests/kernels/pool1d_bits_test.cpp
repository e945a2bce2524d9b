// cpu::pool1d to the bit: the same result from every run, for any number of threads, wherever the work is cut, and
// whatever lies in memory between the rows of x.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "pool1d_cases.h"
#include "pool1d_run.h"

namespace contextpool::testing {
namespace {

class KernelBits : public ::testing::TestWithParam<std::tuple<Algorithm, bool, Type>> {
 protected:
  static Case spec(std::int64_t batch, std::int64_t tokens, std::int64_t channels) {
    Case c;
    std::tie(c.algorithm, c.causal, c.type) = GetParam();
    c.batch = batch;
    c.tokens = c.targets = tokens;
    c.channels = channels;
    c.logits = Logits::heavy_clusters;
    c.mask = Mask::random;
    return c;
  }

  // dy everywhere, not just where the reference would look: every target's share of the sums counts here.
  static Problem problem(const Case& c) {
    Problem p = make_problem(c);
    Random random(3);
    for (double& v : p.dy) v = round_to(c.type, random.normal());
    return p;
  }

  static void expect_same_bits(const Problem& p) {
    const Bytes once = run(p, serial());
    EXPECT_EQ(run(p, serial()), once) << "a second run differs";
    for (const int count : {2, 3, 5}) EXPECT_EQ(run(p, threads(count)), once) << count << " threads differ from one";
    for (const int count : {1, 4}) EXPECT_EQ(run(p, uneven_backwards(count)), once) << "uneven pieces differ";
  }
};

TEST_P(KernelBits, OneLongRowIsTheSameForAnyThreads) {
  // Long enough to be split; the algorithms that look at every pair take a shorter one.
  const auto algorithm = std::get<0>(GetParam());
  const bool linear = algorithm == Algorithm::pyramid || algorithm == Algorithm::automatic;
  Case c = spec(1, linear ? 3000 : 600, 24);
  for (const auto sizes : {Sizes::mixed, Sizes::log_uniform}) {
    SCOPED_TRACE(name(sizes));
    c.sizes = sizes;
    expect_same_bits(problem(c));
  }
}

TEST_P(KernelBits, SeveralRowsAreTheSameForAnyThreads) {
  Case c = spec(3, 400, 67);
  c.targets = 333;
  c.sizes = Sizes::proportional;
  expect_same_bits(problem(c));
}

TEST_P(KernelBits, ManyShortRowsAreTheSameForAnyThreads) { expect_same_bits(problem(spec(64, 19, 5))); }

TEST_P(KernelBits, LayoutOfXDoesNotShow) {
  Case c = spec(2, 300, 33);
  const Problem p = problem(c);
  const Bytes packed = run(p, threads(2));
  for (const auto layout : {Layout::sliced, Layout::transposed}) {
    SCOPED_TRACE(name(layout));
    Problem other = p;
    other.spec.layout = layout;
    EXPECT_EQ(run(other, threads(2)), packed);
  }
}

TEST_P(KernelBits, RowsOfABatchDoNotShowInEachOther) {
  const Case c = spec(3, 300, 9);
  const Problem p = problem(c);
  const auto middle = [](const Bytes& bytes) {
    const auto part = [](const std::vector<std::byte>& v) {
      return std::vector<std::byte>(v.begin() + std::ssize(v) / 3, v.begin() + std::ssize(v) / 3 * 2);
    };
    return Bytes{part(bytes.y), part(bytes.dx), part(bytes.dlog_weight), part(bytes.dsigma)};
  };
  const Bytes want = middle(run(p, threads(2)));
  for (const double v : {kNaN, kInf, 1e4}) {
    Problem other = p;
    for (auto* values : {&other.x, &other.log_weight, &other.sigma, &other.dy}) {
      std::fill_n(values->begin(), values->size() / 3, v);
      std::fill_n(values->rbegin(), values->size() / 3, v);
    }
    EXPECT_EQ(middle(run(other, threads(2))), want) << "with rows of " << v << " on either side";
  }
}

// Later sizes decide which sources are merged; a NaN weight that no earlier target has as a source must not show then.
TEST_P(KernelBits, LaterSizesDoNotShowBesideANaNWeight) {
  Case c = spec(1, 400, 5);
  if (!c.causal) GTEST_SKIP() << "about causal rows";
  Problem p = problem(c);
  p.log_weight[100] = kNaN;
  std::fill(p.sigma.begin(), p.sigma.end(), 2.0);
  std::fill_n(p.dy.begin() + std::ptrdiff_t{5} * 100, 5 * 40, 0.0);
  std::fill(p.dy.begin() + std::ptrdiff_t{5} * 300, p.dy.end(), 0.0);
  const Bytes want = run(p, threads(2));
  std::fill(p.sigma.begin() + 300, p.sigma.end(), 400.0);
  const Bytes got = run(p, threads(2));
  EXPECT_EQ(got.dx, want.dx);
  EXPECT_EQ(got.dlog_weight, want.dlog_weight);
}

// An average of next to nothing is 0 of one sign, whatever the sign of later features.
TEST_P(KernelBits, LaterFeaturesDoNotShowInTheSignOfZero) {
  Case c = spec(1, 4, 1);
  if (!c.causal) GTEST_SKIP() << "about causal rows";
  c.mask = Mask::none;
  Problem p = problem(c);
  p.log_weight = {-3, 0, 0, 0};
  p.sigma = {1, 1, 1, 1};
  const double least = ulp(c.type, 0);
  const auto first_two = [&](double later) {
    p.x = {-least, -0.0, later, later};
    auto y = run(p, serial()).y;
    y.resize(2 * size_of(c.type));
    return y;
  };
  EXPECT_EQ(first_two(1), first_two(-1));
}

std::string bits_name(const ::testing::TestParamInfo<KernelBits::ParamType>& info) {
  return std::string(name(std::get<0>(info.param))) + (std::get<1>(info.param) ? "_causal_" : "_both_") +
         name(std::get<2>(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, KernelBits,
                         ::testing::Combine(::testing::ValuesIn(kAlgorithms), ::testing::Bool(),
                                            ::testing::ValuesIn(kTypes)),
                         bits_name);

}  // namespace
}  // namespace contextpool::testing
