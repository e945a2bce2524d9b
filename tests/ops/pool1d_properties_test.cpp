// What an average around each token must do whatever the numbers are: keep constants, stay within the range of what it
// averages, move with the sequence, forget a common factor of the weights; and its gradient is that of such an average.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <string>

#include "contextpool/ops/pool1d.h"
#include "pool1d_cases.h"

namespace contextpool::testing {
namespace {

// What the contract allows beside values of size `most`; half types round their result once more.
double allowed(Type type, double most) {
  const bool half = type == Type::bf16 || type == Type::f16;
  return half ? ulp(type, most) + 1e-5 * most : tolerance(type).value * most;
}

class Pool1dProperties : public EachSetting {
 protected:
  Case hard(std::int64_t channels) const {
    Case c = spec(setting, 2, linear() ? 3000 : 400, channels);
    c.logits = Logits::heavy_clusters;
    c.mask = Mask::random;
    return c;
  }
};

TEST_P(Pool1dProperties, ConstantFeaturesComeBack) {
  each([this] {
    for (const auto logits : {Logits::spread_5, Logits::heavy_clusters, Logits::light_clusters}) {
      SCOPED_TRACE(name(logits));
      Case c = hard(3);
      c.logits = logits;
      c.mask = Mask::none;
      Inputs in = tensors_of(make_problem(c), device());
      const auto constant = at::arange(1, 4, in.x.options()).mul(0.7);
      in.x = constant.expand(in.x.sizes());
      const auto y = pool1d(in.x, in.log_weight, in.sigma, c.causal, name(c.algorithm));
      EXPECT_LE(y.sub(constant).to(at::kDouble).abs().max().item<double>(), allowed(c.type, 2.1));
    }
  });
}

TEST_P(Pool1dProperties, ConstantFeaturesGiveNoGradientToWeightsAndSizes) {
  each([this] {
    Case c = hard(3);
    c.mask = Mask::none;
    Problem p = make_problem(c);
    std::fill(p.x.begin(), p.x.end(), 1.5);
    expect_accurate(p, values_of(run(tensors_of(p, device()), c)));
  });
}

TEST_P(Pool1dProperties, ResultLiesWithinTheRangeOfTheFeatures) {
  each([this] {
    Case c = hard(4);
    Inputs in = tensors_of(make_problem(c), device());
    const auto masked = in.log_weight.isinf().unsqueeze(-1);
    const auto x = in.x.masked_fill(masked, 0).abs().add(3);  // at the masked ones 3, the least of all
    const auto y = pool1d(x.masked_fill(masked, kNaN), in.log_weight, in.sigma, c.causal, name(c.algorithm));
    const auto range = x.to(at::kDouble);
    const double slack = allowed(c.type, range.max().item<double>());
    const auto none = y.eq(0);  // targets without any source
    EXPECT_TRUE(y.to(at::kDouble).le(range.amax(1, true).add(slack)).all().item<bool>());
    EXPECT_TRUE(y.to(at::kDouble).ge(range.amin(1, true).sub(slack)).logical_or(none).all().item<bool>());
  });
}

TEST_P(Pool1dProperties, ShiftingTheSequenceShiftsTheResult) {
  each([this] {
    // The row in the middle of a longer one whose other tokens are masked, at odd offsets.
    Case c = hard(3);
    const Problem p = make_problem(c);
    const Inputs in = tensors_of(p, device());
    const auto y = values_of(run(in, c).y);
    for (const int64_t offset : {1, 37, 512}) {
      SCOPED_TRACE("by " + std::to_string(offset));
      const auto longer = [&](const at::Tensor& t, double fill) {
        std::vector<int64_t> sizes(t.sizes().begin(), t.sizes().end());
        sizes[1] += offset + 11;
        auto out = at::full(sizes, fill, t.options());
        out.slice(1, offset, offset + t.size(1)).copy_(t);
        return out;
      };
      const auto moved =
          pool1d(longer(in.x, kNaN), longer(in.log_weight, -kInf), longer(in.sigma, 1), c.causal, name(c.algorithm));
      Result got{.y = values_of(moved.slice(1, offset, offset + c.tokens)), .dx = {}, .dlog_weight = {}, .dsigma = {}};
      for (int64_t b = 0; b < c.batch; ++b) {
        const Problem row = row_of(p, b);
        const double bound = 2 * allowed(c.type, scales_of(row).x);  // each of the two may be off
        for (int64_t k = 0; k < c.tokens * c.channels; ++k) {
          const auto at = static_cast<std::size_t>(b * c.tokens * c.channels + k);
          ASSERT_NEAR(got.y[at], y[at], bound) << "row " << b << ", element " << k;
        }
      }
    }
  });
}

TEST_P(Pool1dProperties, FewerTargetsAreTheLastOnes) {
  each([this] {
    Case c = hard(3);
    const Problem p = make_problem(c);
    const Inputs in = tensors_of(p, device());
    const auto y = pool1d(in.x, in.log_weight, in.sigma, c.causal, name(c.algorithm)).to(at::kDouble);
    const double bound = 2 * allowed(c.type, std::max(scales_of(row_of(p, 0)).x, scales_of(row_of(p, 1)).x));
    for (const int64_t targets : {int64_t{1}, int64_t{2}, c.tokens / 3, c.tokens - 1}) {
      const auto first = c.tokens - targets;
      const auto some = pool1d(in.x, in.log_weight, in.sigma.slice(1, first), c.causal, name(c.algorithm));
      EXPECT_LE(some.to(at::kDouble).sub(y.slice(1, first)).abs().max().item<double>(), bound) << targets << " targets";
    }
  });
}

TEST_P(Pool1dProperties, CommonFactorOfTheWeightsCancels) {
  each([this] {
    Case c = hard(3);
    c.logits = Logits::spread_5;
    Problem p = make_problem(c);
    // Multiples of 1/512 up to 20: adding 1e4 to them is exact in float32.
    for (double& v : p.log_weight) v = std::round(v * 512) / 512;
    const auto expected = expected_of(p);
    for (const double offset : {0.0, 1e4, -1e4, 80.0, -80.0}) {
      SCOPED_TRACE(offset);
      Problem moved = p;
      for (double& v : moved.log_weight) v += offset;
      expect_accurate(expected, values_of(run(tensors_of(moved, device()), c)));
    }
  });
}

// y is linear in x, so the gradient of x is the transpose of the forward: dy . y(v) = dx . v for any v, at any length.
class Pool1dTranspose : public EachSetting {
 protected:
  Pool1dTranspose() { types = {Type::f64, Type::f32}; }  // half types round it away
};

TEST_P(Pool1dTranspose, GradientOfTheFeaturesIsTheTransposeOfTheForward) {
  each([this] {
    Case c = spec(setting, 1, linear() ? 20000 : 600, 2);
    c.logits = Logits::heavy_clusters;
    Inputs in = tensors_of(make_problem(c), device());
    Random random(9);
    std::vector<double> dy(static_cast<std::size_t>(in.dy.numel()));
    for (double& v : dy) v = random.normal();
    in.dy = tensor_of(dy, in.dy.sizes(), in.dy.scalar_type(), device());
    const Outputs out = run(in, c);
    const auto dot = [](const at::Tensor& a, const at::Tensor& b) {
      return a.to(at::kDouble).mul(b.to(at::kDouble)).sum().item<double>();
    };
    const double forward = dot(in.dy, out.y);
    const double backward = dot(out.dx, in.x);
    const double size = in.dy.to(at::kDouble).norm().item<double>() * in.x.to(at::kDouble).norm().item<double>();
    EXPECT_NEAR(forward, backward, tolerance(c.type).value * size);
    // A common factor of the weights cancels, so their gradients add up to nothing.
    const double sum = out.dlog_weight.to(at::kDouble).sum().item<double>();
    EXPECT_NEAR(sum, 0, tolerance(c.type).value * size);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Pool1dProperties, settings(), setting_name);
INSTANTIATE_TEST_SUITE_P(All, Pool1dTranspose, settings(), setting_name);

}  // namespace
}  // namespace contextpool::testing
