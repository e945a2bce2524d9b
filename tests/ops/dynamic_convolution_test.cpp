// dynamic_convolution against the formula in float64: values, gradients, any layout, any dtype; its bits; and its
// errors.
#include "contextpool/ops/dynamic_convolution.h"

#include <ATen/Parallel.h>

#include <array>
#include <limits>

#include "ops/dynamic_convolution.h"
#include "step_cases.h"

namespace contextpool::testing {
namespace {

constexpr std::array kTypes = {torch::kFloat64, torch::kFloat32, torch::kBFloat16, torch::kHalf};

// All coefficients of all targets, times the zero-padded tokens, in the type of the inputs.
Tensor formula(const Tensor& x, const Tensor& inner, const Tensor& up, const Tensor& weight, int64_t left,
               bool residual) {
  const auto taps = up.size(0), first = x.size(-2) - inner.size(-2);
  const auto coefficients = torch::einsum("...nr,kdr->...nkd", {inner, up}) + weight.t();
  const auto padded = torch::constant_pad_nd(x, {0, 0, left, taps - 1 - left});
  const auto windows = padded.unfold(-2, taps, 1).transpose(-1, -2).slice(-3, first);  // [..., targets, taps, channels]
  const auto y = (coefficients * windows).sum(-2);
  return residual ? x.slice(-2, first) + y : y;
}

struct Case {
  std::vector<int64_t> sizes;
  int64_t targets, taps, left, rank;
};

// Tokens fewer than taps, than a tile and than a chunk, and more; channels fewer than a vector and in between; ranks
// below, between and above vectors; targets that are the last tokens alone.
std::vector<Case> cases() {
  return {{{2, 9, 5}, 9, 4, 3, 3},      {{1, 3, 17}, 3, 15, 14, 15},  {{3, 40, 16}, 40, 15, 7, 1},
          {{2, 2, 8, 33}, 8, 3, 1, 16}, {{7, 4}, 7, 4, 0, 7},         {{2, 300, 20}, 300, 4, 3, 15},
          {{1, 521, 7}, 521, 5, 4, 17}, {{2, 1, 64}, 1, 4, 3, 4},     {{1, 24, 48}, 24, 1, 0, 33},
          {{1, 12, 6}, 12, 40, 20, 2},  {{2, 4, 40}, 1, 4, 3, 15},    {{3, 60, 24}, 51, 6, 2, 5},
          {{70, 5, 16}, 5, 3, 1, 15},   {{2, 130, 32}, 130, 7, 3, 8}, {{1, 50, 18}, 7, 9, 4, 12}};
}

std::vector<Tensor> draw_inputs(const Case& c, torch::ScalarType type) {
  auto inner = c.sizes;
  inner[inner.size() - 2] = c.targets;
  inner.back() = c.rank;
  const auto channels = c.sizes.back();
  return {draw(c.sizes, type), draw(inner, type), draw({c.taps, channels, c.rank}, type),
          draw({channels, c.taps}, type)};
}

Tensor draw_gradient(const Case& c, torch::ScalarType type) {
  auto sizes = c.sizes;
  sizes[sizes.size() - 2] = c.targets;
  return draw(sizes, type);
}

TEST(DynamicConvolution, IsTheFormulaWithItsGradients) {
  for (const auto type : kTypes) {
    for (const auto& c : cases()) {
      for (const bool residual : {false, true}) {
        SCOPED_TRACE(::testing::Message() << type << " " << c.sizes << " targets " << c.targets << " taps " << c.taps
                                          << " left " << c.left << " rank " << c.rank);
        expect_as_accurate(
            draw_inputs(c, type), {draw_gradient(c, type)},
            [&](const auto& in) {
              return std::vector{dynamic_convolution(in[0], in[1], in[2], in[3], c.left, residual)};
            },
            [&](const auto& in) { return std::vector{formula(in[0], in[1], in[2], in[3], c.left, residual)}; });
      }
    }
  }
}

TEST(DynamicConvolution, TakesFloat32WeightsBesideHalfFeatures) {
  const Case c{{2, 30, 24}, 30, 4, 3, 15};
  const auto in = draw_inputs(c, torch::kFloat32);
  const auto x = in[0].to(torch::kBFloat16);
  const auto y = dynamic_convolution(x, in[1].to(torch::kHalf), in[2], in[3], 3, true);
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  const auto exact = formula(x.to(torch::kFloat64), in[1].to(torch::kHalf).to(torch::kFloat64),
                             in[2].to(torch::kFloat64), in[3].to(torch::kFloat64), 3, true);
  EXPECT_LE(error_of(y, exact), rounding(torch::kBFloat16));
}

TEST(DynamicConvolution, TakesAnyStrides) {
  const auto in = draw_inputs({{3, 50, 12}, 50, 4, 2, 5}, torch::kFloat32);
  const auto interleaved = draw({3, 50, 2, 12}, torch::kFloat32);
  const auto up = in[2].transpose(1, 2).contiguous().transpose(1, 2), weight = in[3].t().contiguous().t();
  for (const auto& x : {interleaved.select(2, 1), interleaved.select(2, 0).transpose(0, 1).contiguous().transpose(0, 1),
                        draw({3, 12, 50}, torch::kFloat32).transpose(1, 2),
                        interleaved.select(2, 0).slice(0, 1, 2).expand({3, -1, -1})}) {
    const auto inner = in[1].transpose(0, 1).contiguous().transpose(0, 1);
    const auto results = [&](const std::vector<Tensor>& inputs, const Tensor& dy) {
      return with_gradients(leaves(inputs), {dy},
                            [](const auto& t) { return std::vector{dynamic_convolution(t[0], t[1], t[2], t[3], 2)}; });
    };
    const auto dy = draw({50, 3, 12}, torch::kFloat32).transpose(0, 1);
    EXPECT_TRUE(dynamic_convolution(x, inner, up, weight, 2).is_contiguous());
    EXPECT_TRUE(torch::equal(dynamic_convolution(x, inner, up, weight, 2),
                             dynamic_convolution(x.contiguous(), in[1], in[2], in[3], 2)));
    const auto ours = results({x, inner, up, weight}, dy);
    const auto same = results({x.contiguous(), in[1], in[2], in[3]}, dy.contiguous());
    for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(torch::equal(ours[i], same[i])) << i;
  }
}

TEST(DynamicConvolution, HandlesEmptyTensors) {
  for (const auto& c : {Case{{0, 5, 6}, 5, 3, 1, 2}, Case{{2, 0, 6}, 0, 3, 1, 2}, Case{{2, 4, 6}, 0, 3, 1, 2},
                        Case{{2, 4, 6}, 4, 3, 1, 0}}) {
    const auto in = leaves(draw_inputs(c, torch::kFloat32));
    const auto y = dynamic_convolution(in[0], in[1], in[2], in[3], c.left);
    EXPECT_EQ(y.size(-2), c.targets);
    if (y.numel() > 0) {
      EXPECT_LE(error_of(y, formula(in[0], in[1], in[2], in[3], c.left, false)), 1e-6);
    }
    y.sum().backward();
    for (const auto& t : in) {
      EXPECT_TRUE(t.grad().isfinite().all().item<bool>());
      if (y.numel() == 0) {
        EXPECT_EQ(t.grad().abs().sum().item<double>(), 0);
      }
    }
  }
}

// The bits of a token: the same in a longer row, alone, step by step, and whatever later tokens hold.
TEST(DynamicConvolutionBits, DependOnTheTokenAndThoseOfItsTapsAlone) {
  if (!on_cpu()) GTEST_SKIP() << "promised for the CPU";
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const int64_t taps : {4, 15}) {
      const auto in = draw_inputs({{3, 300, 37}, 300, taps, taps - 1, 15}, type);
      const auto &x = in[0], &inner = in[1], &up = in[2], &weight = in[3];
      const auto y = dynamic_convolution(x, inner, up, weight, taps - 1, true);
      auto later = x.clone(), later_inner = inner.clone();
      later.slice(1, 101) = std::numeric_limits<double>::quiet_NaN();
      later_inner.slice(1, 101) = std::numeric_limits<double>::quiet_NaN();
      EXPECT_TRUE(torch::equal(y.slice(1, 0, 101),
                               dynamic_convolution(later, later_inner, up, weight, taps - 1, true).slice(1, 0, 101)));
      for (const int64_t n : {1, 7, 101, 259}) {
        EXPECT_TRUE(torch::equal(y.slice(1, 0, n).select(0, 1),
                                 dynamic_convolution(x.select(0, 1).slice(0, 0, n), inner.select(0, 1).slice(0, 0, n),
                                                     up, weight, taps - 1, true)));
        const auto window = x.slice(1, std::max<int64_t>(0, n - taps), n);
        EXPECT_TRUE(torch::equal(y.slice(1, n - 1, n),
                                 dynamic_convolution(window, inner.slice(1, n - 1, n), up, weight, taps - 1, true)));
      }
    }
  }
}

// No bit of a gradient depends on what comes later, where the gradient of the result is 0 there.
TEST(DynamicConvolutionBits, OfGradientsDoNotDependOnLaterTokens) {
  if (!on_cpu()) GTEST_SKIP() << "promised for the CPU";
  const auto in = draw_inputs({{2, 130, 21}, 130, 4, 3, 15}, torch::kFloat32);
  auto dy = draw({2, 130, 21}, torch::kFloat32);
  dy.slice(1, 70) = 0;
  const auto gradients = [&](const Tensor& x, const Tensor& inner) {
    return with_gradients(leaves({x, inner, in[2], in[3]}), {dy},
                          [](const auto& t) { return std::vector{dynamic_convolution(t[0], t[1], t[2], t[3], 3)}; });
  };
  auto other_x = in[0].clone(), other_inner = in[1].clone();
  other_x.slice(1, 70) = 7;
  other_inner.slice(1, 70) = -5;
  const auto one = gradients(in[0], in[1]), other = gradients(other_x, other_inner);
  for (std::size_t i = 1; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i], other[i])) << i;
}

TEST(DynamicConvolutionBits, AreTheSameForAnyNumberOfThreads) {
  if (!on_cpu()) GTEST_SKIP() << "promised for the CPU";
  const auto results = [](int threads) {
    torch::manual_seed(3);
    at::set_num_threads(threads);
    const Case c{{3, 1000, 40}, 1000, 4, 3, 15};
    return with_gradients(
        leaves(draw_inputs(c, torch::kFloat32)), {draw_gradient(c, torch::kFloat32)},
        [](const auto& t) { return std::vector{dynamic_convolution(t[0], t[1], t[2], t[3], 3, true)}; });
  };
  const int before = at::get_num_threads();
  const auto one = results(1);
  for (const int threads : {2, 3, 5}) {
    const auto several = results(threads);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i], several[i])) << i;
  }
  at::set_num_threads(before);
}

TEST(DynamicConvolution, LetsNanThroughWhereItIsReadAndNowhereElse) {
  auto in = draw_inputs({{1, 70, 6}, 70, 4, 3, 5}, torch::kFloat32);
  in[0].select(1, 9) = std::numeric_limits<double>::quiet_NaN();
  in[1].select(1, 40) = std::numeric_limits<double>::quiet_NaN();
  const auto y = dynamic_convolution(in[0], in[1], in[2], in[3], 3).cpu();
  for (int64_t i = 0; i < 70; ++i) {
    EXPECT_EQ(y.select(1, i).isnan().all().item<bool>(), (i >= 9 && i < 13) || i == 40) << i;
  }
  EXPECT_EQ(y.isnan().sum().item<int64_t>(), 5 * 6);
}

// PyTorch's operators, which CUDA has for float64 and for many taps, work on any device.
TEST(DynamicConvolution, IsTheSameAsItsComposite) {
  for (const auto& c : cases()) {
    const auto in = draw_inputs(c, torch::kFloat64);
    const auto dy = draw_gradient(c, torch::kFloat64);
    const auto ours = with_gradients(leaves(in), {dy}, [&](const auto& t) {
      return std::vector{dynamic_convolution(t[0], t[1], t[2], t[3], c.left, true)};
    });
    const auto y = dynamic_convolution_composite(in[0], in[1], in[2], in[3], c.left, true);
    const auto [dx, dinner, dup, dweight] =
        dynamic_convolution_backward_composite(dy, in[0], in[1], in[2], in[3], c.left, true);
    const std::array composite = {y, dx, dinner, dup, dweight};
    ASSERT_EQ(ours.size(), composite.size());
    for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_LE(error_of(composite[i], ours[i]), 1e-13) << i;
  }
}

TEST(DynamicConvolution, RefusesWhatCannotBe) {
  const auto in = draw_inputs({{2, 5, 6}, 5, 4, 3, 3}, torch::kFloat32);
  const auto &x = in[0], &inner = in[1], &up = in[2], &weight = in[3];
  const auto refused = [](const std::string& words, auto call) {
    try {
      call();
      ADD_FAILURE() << "no error: " << words;
    } catch (const c10::Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  };
  refused("left must be from 0 to 3", [&] { dynamic_convolution(x, inner, up, weight, 4); });
  refused("left must be at least 0", [&] { dynamic_convolution(x, inner, up, weight, -1); });
  refused("x has 5 channels but weight has 6", [&] { dynamic_convolution(x.slice(2, 0, 5), inner, up, weight, 3); });
  refused("x has 6 channels but up has 5", [&] { dynamic_convolution(x, inner, up.slice(1, 0, 5), weight, 3); });
  refused("weight has 4 taps but up has 3", [&] { dynamic_convolution(x, inner, up.slice(0, 0, 3), weight, 3); });
  refused("inner is of rank 3 but up of rank 2", [&] { dynamic_convolution(x, inner, up.slice(2, 0, 2), weight, 3); });
  refused("inner has 5 targets but x has only 4 tokens",
          [&] { dynamic_convolution(x.slice(1, 0, 4), inner, up, weight, 3); });
  refused("the same rows", [&] { dynamic_convolution(x, inner.slice(0, 0, 1), up, weight, 3); });
  refused("x must be [..., tokens, channels]", [&] { dynamic_convolution(x.flatten(), inner, up, weight, 3); });
  refused("up must be [taps, channels, rank]", [&] { dynamic_convolution(x, inner, up.flatten(1), weight, 3); });
  refused("inner must be float64", [&] { dynamic_convolution(x, inner.to(torch::kLong), up, weight, 3); });
}

}  // namespace
}  // namespace contextpool::testing
