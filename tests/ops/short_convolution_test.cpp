// short_convolution against the formula in float64: values, gradients, any layout, any dtype; its bits; and its errors.
#include "contextpool/ops/short_convolution.h"

#include <ATen/Parallel.h>

#include <limits>

#include "ops/short_convolution.h"
#include "step_cases.h"

namespace contextpool::testing {
namespace {

constexpr std::array kTypes = {torch::kFloat64, torch::kFloat32, torch::kBFloat16, torch::kHalf};

// By PyTorch's convolution of zero-padded rows, of half types in float32: its own in half takes minutes on some CPUs.
Tensor formula(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t left, bool residual) {
  const auto type = x.element_size() == 2 ? torch::kFloat32 : x.scalar_type();
  const auto rows = x.to(type).reshape({-1, x.size(-2), x.size(-1)});
  const auto padded = torch::constant_pad_nd(rows, {0, 0, left, weight.size(1) - 1 - left}).transpose(1, 2);
  const auto y = torch::conv1d(padded, weight.to(type).unsqueeze(1), bias.defined() ? bias.to(type) : bias, {1},
                               at::IntArrayRef{0}, {1}, weight.size(0))
                     .transpose(1, 2)
                     .reshape_as(x);
  return (residual ? x.to(type) + y : y).to(x.scalar_type());
}

struct Case {
  std::vector<int64_t> sizes;
  int64_t taps, left;
};

// Tokens fewer than taps, than a tile and than a chunk, and more; channels fewer than a vector and in between.
std::vector<Case> cases() {
  return {{{2, 9, 5}, 4, 3},   {{1, 3, 17}, 15, 14}, {{3, 40, 16}, 15, 7},  {{2, 2, 8, 33}, 3, 1},
          {{7, 4}, 4, 0},      {{2, 300, 20}, 4, 3}, {{1, 521, 7}, 15, 14}, {{2, 1, 64}, 4, 3},
          {{1, 24, 48}, 1, 0}, {{1, 12, 6}, 40, 20}};
}

TEST(ShortConvolution, IsTheFormulaWithItsGradients) {
  torch::manual_seed(1);  // the same numbers whichever tests run before
  for (const auto type : kTypes) {
    for (const auto& c : cases()) {
      for (const bool residual : {false, true}) {
        SCOPED_TRACE(::testing::Message() << type << " " << c.sizes << " taps " << c.taps << " left " << c.left);
        const auto channels = c.sizes.back();
        expect_as_accurate(
            {draw(c.sizes, type), draw({channels, c.taps}, type), draw({channels}, type)}, {draw(c.sizes, type)},
            [&](const auto& in) { return std::vector{short_convolution(in[0], in[1], in[2], c.left, residual)}; },
            [&](const auto& in) { return std::vector{formula(in[0], in[1], in[2], c.left, residual)}; });
      }
    }
  }
}

TEST(ShortConvolution, TakesFloat32WeightsBesideHalfFeatures) {
  const auto x = draw({2, 30, 24}, torch::kBFloat16), weight = draw({24, 4}, torch::kFloat32);
  const auto y = short_convolution(x, weight, std::nullopt, 3, true);
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  const auto exact = formula(x.to(torch::kFloat64), weight.to(torch::kFloat64), {}, 3, true);
  EXPECT_LE(error_of(y, exact), rounding(torch::kBFloat16));
}

TEST(ShortConvolution, TakesAnyStrides) {
  const auto weight = draw({4, 12}, torch::kFloat32).t();  // [12, 4]
  const auto interleaved = draw({3, 50, 2, 12}, torch::kFloat32);
  for (const auto& x : {interleaved.select(2, 1), interleaved.select(2, 0).slice(1, 3, 50, 2),
                        interleaved.select(2, 1).transpose(0, 1), draw({3, 12, 50}, torch::kFloat32).transpose(1, 2),
                        interleaved.select(2, 0).slice(0, 1, 2).expand({3, -1, -1})}) {
    const auto y = short_convolution(x, weight, std::nullopt, 2);
    EXPECT_TRUE(y.is_contiguous());
    EXPECT_TRUE(torch::equal(y, short_convolution(x.contiguous(), weight.contiguous(), std::nullopt, 2)));
    const auto leaf = x.detach().requires_grad_();
    short_convolution(leaf, weight, std::nullopt, 2).backward(y.transpose(0, 1).contiguous().transpose(0, 1));
    const auto other = x.detach().contiguous().requires_grad_();
    short_convolution(other, weight, std::nullopt, 2).backward(y);
    EXPECT_TRUE(torch::equal(leaf.grad(), other.grad()));
  }
}

TEST(ShortConvolution, HandlesEmptyTensors) {
  for (const auto& sizes : {std::vector<int64_t>{0, 5, 6}, {2, 0, 6}}) {
    const auto x = draw(sizes, torch::kFloat32).requires_grad_(),
               weight = draw({6, 3}, torch::kFloat32).requires_grad_();
    const auto y = short_convolution(x, weight, std::nullopt, 1);
    EXPECT_EQ(y.sizes(), x.sizes());
    y.sum().backward();
    EXPECT_EQ(weight.grad().abs().sum().item<double>(), 0);
  }
}

// The bits of a token: the same in a longer row, alone, step by step, and whatever later tokens hold.
TEST(ShortConvolutionBits, DependOnTheTokensOfTheTapsAlone) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const int64_t taps : {4, 15}) {
      const auto x = draw({3, 300, 37}, type), weight = draw({37, taps}, type), bias = draw({37}, type);
      const auto y = short_convolution(x, weight, bias, taps - 1, true);
      auto later = x.clone();
      later.slice(1, 101) = std::numeric_limits<double>::quiet_NaN();
      EXPECT_TRUE(
          torch::equal(y.slice(1, 0, 101), short_convolution(later, weight, bias, taps - 1, true).slice(1, 0, 101)));
      for (const int64_t n : {1, 7, 101, 259}) {
        EXPECT_TRUE(torch::equal(y.slice(1, 0, n).select(0, 1),
                                 short_convolution(x.select(0, 1).slice(0, 0, n), weight, bias, taps - 1, true)));
        const auto window = x.slice(1, std::max<int64_t>(0, n - taps), n);
        EXPECT_TRUE(
            torch::equal(y.select(1, n - 1), short_convolution(window, weight, bias, taps - 1, true).select(1, -1)));
      }
    }
  }
}

TEST(ShortConvolutionBits, AreTheSameForAnyNumberOfThreads) {
  if (!on_cpu()) GTEST_SKIP() << "promised for the CPU";
  const auto results = [](int threads) {
    torch::manual_seed(3);
    at::set_num_threads(threads);
    const auto x = draw({3, 1000, 40}, torch::kFloat32).requires_grad_();
    const auto weight = draw({40, 4}, torch::kFloat32).requires_grad_(),
               bias = draw({40}, torch::kFloat32).requires_grad_();
    const auto y = short_convolution(x, weight, bias, 3, true);
    y.backward(draw({3, 1000, 40}, torch::kFloat32));
    return std::vector{y.detach(), x.grad(), weight.grad(), bias.grad()};
  };
  const int before = at::get_num_threads();
  const auto one = results(1);
  for (const int threads : {2, 3, 5}) {
    const auto several = results(threads);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i], several[i])) << i;
  }
  at::set_num_threads(before);
}

TEST(ShortConvolution, LetsNanThroughWhereItIsReadAndNowhereElse) {
  auto x = draw({1, 20, 6}, torch::kFloat32);
  x.select(1, 9) = std::numeric_limits<double>::quiet_NaN();
  const auto y = short_convolution(x, draw({6, 4}, torch::kFloat32), std::nullopt, 3).cpu();
  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(y.select(1, i).isnan().all().item<bool>(), i >= 9 && i < 13) << i;
  EXPECT_EQ(y.isnan().sum().item<int64_t>(), 4 * 6);
}

// PyTorch's operators, which CUDA has for float64 and many taps, work on any device.
TEST(ShortConvolution, IsTheSameAsItsComposite) {
  for (const auto& c : cases()) {
    const auto channels = c.sizes.back();
    const auto x = draw(c.sizes, torch::kFloat64), weight = draw({channels, c.taps}, torch::kFloat64);
    const auto bias = draw({channels}, torch::kFloat64), dy = draw(c.sizes, torch::kFloat64);
    const auto in = float64_leaves({x, weight, bias});
    const auto y = short_convolution(in[0], in[1], in[2], c.left, true);
    EXPECT_LE(error_of(short_convolution_composite(x, weight, bias, c.left, true), y), 1e-14);
    const auto ours = torch::autograd::grad({y}, in, {dy});
    const auto [dx, dweight, dbias] = short_convolution_backward_composite(dy, x, weight, c.left, true);
    EXPECT_LE(error_of(dx, ours[0]), 1e-14);
    EXPECT_LE(error_of(dweight, ours[1]), 1e-13);
    EXPECT_LE(error_of(dbias, ours[2]), 1e-13);
  }
}

TEST(ShortConvolution, RefusesWhatCannotBe) {
  const auto x = draw({2, 5, 6}, torch::kFloat32), weight = draw({6, 4}, torch::kFloat32);
  const auto refused = [](const std::string& words, auto call) {
    try {
      call();
      ADD_FAILURE() << "no error: " << words;
    } catch (const c10::Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  };
  refused("left must be from 0 to 3", [&] { short_convolution(x, weight, std::nullopt, 4); });
  refused("left must be at least 0", [&] { short_convolution(x, weight, std::nullopt, -1); });
  refused("x has 5 channels but weight has 6", [&] { short_convolution(x.slice(2, 0, 5), weight, std::nullopt, 3); });
  refused("x must be [..., tokens, channels]", [&] { short_convolution(x.flatten(), weight, std::nullopt, 3); });
  refused("tensors must be float64", [&] { short_convolution(x.to(torch::kLong), weight, std::nullopt, 3); });
  refused("bias must be as weight", [&] { short_convolution(x, weight, draw({6}, torch::kFloat64), 3); });
  refused("bias has 5", [&] { short_convolution(x, weight, draw({5}, torch::kFloat32), 3); });
}

}  // namespace
}  // namespace contextpool::testing
