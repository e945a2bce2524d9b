// contextpool::pool1d keeps the accuracy contract on tensors: any layout, any leading dimensions, every dtype, every
// algorithm, every device. The same list of cases as for the kernels, drawn anew.
#include "contextpool/ops/pool1d.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>

#include "pool1d_cases.h"

namespace contextpool::testing {
namespace {

// The cases of one length on one device.
class Pool1d : public ::testing::TestWithParam<std::tuple<at::DeviceType, std::int64_t>> {
 protected:
  static void expect_accurate_over(const std::vector<Case>& cases) {
    const auto [device, tokens] = GetParam();
    for (Case c : cases) {
      if (c.tokens != tokens) continue;
      SCOPED_TRACE(name(c));
      c.rounds_weights = device == at::kCUDA;
      const Problem p = make_problem(c);
      const Outputs out = run(tensors_of(p, device), c);
      EXPECT_EQ(out.y.sizes(), (std::vector<int64_t>{c.batch, c.targets, c.channels}));
      EXPECT_TRUE(out.y.is_contiguous());
      EXPECT_EQ(out.y.scalar_type(), scalar(c.type));
      EXPECT_EQ(out.dlog_weight.scalar_type(), scalar(weight_type(c.type)));
      EXPECT_EQ(out.dsigma.scalar_type(), scalar(weight_type(c.type)));
      expect_accurate(p, values_of(out));
    }
  }
};

TEST_P(Pool1d, IsAccurate) { expect_accurate_over(covering_cases(every_level(), 3)); }

class Pool1dLongRows : public Pool1d {};

TEST_P(Pool1dLongRows, AreAccurateInLinearTime) { expect_accurate_over(covering_cases(long_rows(), 4)); }

std::string length_name(const ::testing::TestParamInfo<Pool1d::ParamType>& info) {
  return name(std::get<0>(info.param)) + "_n" + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, Pool1d, ::testing::Combine(::testing::ValuesIn(devices()), ::testing::ValuesIn(kTokens)),
                         length_name);
INSTANTIATE_TEST_SUITE_P(All, Pool1dLongRows,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Values(577, 1000, 4096, 20000)),
                         length_name);

class Pool1dShapes : public EachSetting {};

TEST_P(Pool1dShapes, LeadingDimensionsAreRowsOfABatch) {
  each([this] {
    Case c = spec(setting, 6, 40, 5);
    c.targets = 17;
    const Problem p = make_problem(c);
    const auto expected = expected_of(p);
    const Inputs in = tensors_of(p, device());
    const auto shaped = [](const at::Tensor& t, std::vector<int64_t> leading) {
      leading.insert(leading.end(), t.sizes().begin() + 1, t.sizes().end());
      return t.reshape(leading);
    };
    for (const std::vector<int64_t>& leading : {std::vector<int64_t>{2, 1, 3}, {6, 1}, {1, 6}, {3, 2}}) {
      const Outputs out = run(
          {shaped(in.x, leading), shaped(in.log_weight, leading), shaped(in.sigma, leading), shaped(in.dy, leading)},
          c);
      EXPECT_EQ(out.y.sizes(), shaped(in.dy, leading).sizes());
      expect_accurate(expected, values_of(out));
    }
    for (int64_t b = 0; b < c.batch; ++b) {  // none at all: a row by itself
      const Outputs out = run({in.x[b], in.log_weight[b], in.sigma[b], in.dy[b]}, c);
      EXPECT_EQ(out.y.sizes(), (std::vector<int64_t>{17, 5}));
      expect_accurate({expected[static_cast<std::size_t>(b)]}, values_of(out));
    }
  });
}

TEST_P(Pool1dShapes, RowsOfABatchAreIndependent) {
  each([this] {
    const Case c = spec(setting, 3, 120, 4);
    const Problem p = make_problem(c);
    const auto expected = expected_of(p);
    for (const double v : {kNaN, kInf}) {
      Inputs in = tensors_of(p, device());
      for (const auto& t : {in.x, in.log_weight, in.sigma, in.dy}) {
        t[0].fill_(v);
        t[2].fill_(v);
      }
      const Outputs out = run(in, c);
      expect_accurate({expected[1]}, values_of({out.y[1], out.dx[1], out.dlog_weight[1], out.dsigma[1]}));
    }
  });
}

TEST_P(Pool1dShapes, AnyStridesAreRead) {
  each([this] {
    Case c = spec(setting, 2, 150, 20);
    c.mask = Mask::random;
    const Problem p = make_problem(c);
    const auto expected = expected_of(p);
    const Inputs in = tensors_of(p, device());
    const auto swapped = [](const at::Tensor& t) { return t.transpose(0, 1).contiguous().transpose(0, 1); };
    const auto transposed = [](const at::Tensor& t) { return laid_out(t, Layout::transposed); };
    const auto sliced = [](const at::Tensor& t) { return laid_out(t, Layout::sliced); };
    const auto backwards = [](const at::Tensor& t) { return t.flip(0).contiguous().flip(0); };
    for (const auto& lay :
         std::vector<std::function<at::Tensor(const at::Tensor&)>>{swapped, transposed, sliced, backwards}) {
      expect_accurate(expected, values_of(run({lay(in.x), lay(in.log_weight), lay(in.sigma), lay(in.dy)}, c)));
    }
    // Leading dimensions that no view flattens.
    const auto crossed = [](const at::Tensor& t) { return at::stack({t, t}, 0).transpose(0, 1); };
    const Outputs out = run({crossed(in.x), crossed(in.log_weight), crossed(in.sigma), crossed(in.dy)}, c);
    for (const int64_t k : {0, 1}) {
      expect_accurate(expected, values_of({out.y.select(1, k), out.dx.select(1, k), out.dlog_weight.select(1, k),
                                           out.dsigma.select(1, k)}));
    }
  });
}

TEST_P(Pool1dShapes, ExpandedTensorsAreRead) {
  each([this] {
    const Case c = spec(setting, 1, 90, 4);
    const Problem p = make_problem(c);
    const auto expected = expected_of(p);
    const Inputs one = tensors_of(p, device());
    const auto repeated = [](const at::Tensor& t) {
      std::vector<int64_t> sizes(t.sizes().begin(), t.sizes().end());
      sizes[0] = 3;
      return t.expand(sizes);
    };
    const Outputs out = run({repeated(one.x), repeated(one.log_weight), repeated(one.sigma), repeated(one.dy)}, c);
    expect_accurate({expected[0], expected[0], expected[0]}, values_of(out));
    // The gradient of a sum comes as one number, expanded.
    Problem sum = p;
    std::fill(sum.dy.begin(), sum.dy.end(), 1);
    const auto ones = at::ones({}, one.dy.options()).expand(one.dy.sizes());
    expect_accurate(sum, values_of(run({one.x, one.log_weight, one.sigma, ones}, c)));
  });
}

TEST_P(Pool1dShapes, OnlyTheGradientsAskedForAreGiven) {
  each([this] {
    const Case c = spec(setting, 2, 30, 4);
    const Inputs in = tensors_of(make_problem(c), device());
    const Outputs all = run(in, c);
    for (std::size_t which = 0; which < 3; ++which) {
      std::array<at::Tensor, 3> t = {in.x.detach(), in.log_weight.detach(), in.sigma.detach()};
      const std::array<at::Tensor, 3> want = {all.dx, all.dlog_weight, all.dsigma};
      t[which].set_requires_grad(true);
      pool1d(t[0], t[1], t[2], c.causal, name(c.algorithm)).backward(in.dy);
      for (std::size_t k = 0; k < 3; ++k) {
        EXPECT_EQ(t[k].grad().defined(), k == which);
        if (t[k].grad().defined()) {
          EXPECT_TRUE(same(t[k].grad(), want[k])) << which;
        }
      }
    }
    EXPECT_FALSE(pool1d(in.x, in.log_weight, in.sigma).requires_grad());
  });
}

TEST_P(Pool1dShapes, InputsAreNotChanged) {
  each([this] {
    Case c = spec(setting, 2, 70, 6);
    c.mask = Mask::alternating;
    const Inputs in = tensors_of(make_problem(c), device());
    const Inputs kept = {in.x.clone(), in.log_weight.clone(), in.sigma.clone(), in.dy.clone()};
    run(in, c);
    EXPECT_TRUE(same(in.x, kept.x) && same(in.log_weight, kept.log_weight) && same(in.sigma, kept.sigma) &&
                same(in.dy, kept.dy));
  });
}

INSTANTIATE_TEST_SUITE_P(All, Pool1dShapes, settings(), setting_name);

}  // namespace
}  // namespace contextpool::testing
