// The CUDA kernels of predict_windows against the formula in float64.
#include "kernels/cuda/predict_windows/predict_windows.h"

#include "values.h"

namespace contextpool::testing {
namespace {

struct Case {
  std::size_t batch, tokens, hidden, taps, left, channels, sizes;
  double size_range = 0;
};

std::string text_of(const Case& c) {
  return ::testing::PrintToString(
             std::vector<std::size_t>{c.batch, c.tokens, c.hidden, c.taps, c.left, c.channels, c.sizes}) +
         (c.size_range > 0 ? " bounded" : "");
}

// Tiles that are whole, and not; rows shorter than the taps; each number of channels that has kernels of its own.
constexpr Case kCases[] = {{2, 70, 64, 3, 2, 2, 1, 2},  {1, 64, 64, 3, 1, 2, 1},      {3, 2, 16, 4, 3, 2, 1},
                           {1, 33, 8, 1, 0, 4, 2, 0.5}, {2, 40, 64, 3, 2, 16, 8, 2},  {1, 50, 24, 3, 0, 8, 0},
                           {1, 37, 64, 4, 2, 32, 16},   {2, 17, 32, 2, 1, 20, 20, 1}, {1, 1, 64, 3, 2, 2, 1, 2},
                           {40, 96, 8, 2, 1, 1, 1}};

double gelu(double z) { return z * std::erfc(-z / std::sqrt(2.0)) / 2; }
double gelu_slope(double z) {
  return std::erfc(-z / std::sqrt(2.0)) / 2 + z * std::exp(-z * z / 2) / std::sqrt(2 * std::acos(-1.0));
}

// Values with the sizes of what they were added up from.
class Formula {
 public:
  Formula(const Case& of, const Values& product, const Values& bias, const Values& weight, const Values& out_bias)
      : c(of),
        product_(product),
        weight_(weight),
        z(c.batch * c.tokens * c.hidden),
        u(c.batch * c.channels * c.tokens),
        out_bias_(out_bias) {
    for (std::size_t b = 0; b < c.batch; ++b) {
      for (std::size_t t = 0; t < c.tokens; ++t) {
        for (std::size_t h = 0; h < c.hidden; ++h) {
          auto& sum = z[(b * c.tokens + t) * c.hidden + h];
          sum += bias[h];
          each_tap(t, [&](std::size_t k, std::size_t source) { sum += product_[product_at(b, source, k, h)]; });
        }
      }
    }
    for (std::size_t b = 0; b < c.batch; ++b) {
      for (std::size_t i = 0; i < c.channels; ++i) {
        for (std::size_t t = 0; t < c.tokens; ++t) {
          auto& sum = u[(b * c.channels + i) * c.tokens + t];
          each_tap(t, [&](std::size_t k, std::size_t source) {
            for (std::size_t h = 0; h < c.hidden; ++h) {
              const auto& from = z[(b * c.tokens + source) * c.hidden + h];
              sum.value += weight_[weight_at(i, h, k)] * gelu(from.value);
              sum.size += std::fabs(weight_[weight_at(i, h, k)]) * from.size;
            }
          });
        }
      }
    }
  }

  // f(k, token) of the taps of token t that fall on tokens.
  template <typename F>
  void each_tap(std::size_t t, F f) const {
    for (std::size_t k = 0; k < c.taps; ++k) {
      if (t + k >= c.left && t + k - c.left < c.tokens) f(k, t + k - c.left);
    }
  }
  std::size_t product_at(std::size_t b, std::size_t t, std::size_t k, std::size_t h) const {
    return ((b * c.tokens + t) * c.taps + k) * c.hidden + h;
  }
  std::size_t weight_at(std::size_t i, std::size_t h, std::size_t k) const { return (i * c.hidden + h) * c.taps + k; }
  bool is_size(std::size_t i) const { return i >= c.channels - c.sizes; }
  // Of a size: its share of the span, and how much the logit follows u.
  double share(std::size_t i, double of_u) const {
    const double bounded = c.size_range > 0 ? c.size_range * std::tanh(of_u / c.size_range) : of_u;
    return 1 / (1 + std::exp(-(kShift + out_bias_[i] + bounded)));
  }
  double slope(double of_u) const { return c.size_range > 0 ? 1 - std::pow(std::tanh(of_u / c.size_range), 2) : 1; }

  static constexpr double kShift = -0.75, kLeast = 0.5, kSpan = 20;
  const Case& c;

 private:
  const Values &product_, &weight_;

 public:
  std::vector<Sum> z, u;  // [B, N, H] and [B, C, N]

 private:
  const Values& out_bias_;
};

void expect_formula(Type type, const Case& c) {
  const auto weights = c.channels - c.sizes, rows = c.batch * c.tokens;
  const auto product = draw(type, rows * c.taps * c.hidden, 1);
  const auto bias = draw(Type::f32, c.hidden, 2), out_bias = draw(Type::f32, c.channels, 4);
  const auto weight = draw(Type::f32, c.channels * c.hidden * c.taps, 3, 0, 0.2);
  const auto dl = draw(Type::f32, rows * weights, 5), dsigma = draw(Type::f32, rows * c.sizes, 6);
  const auto results = in_any_order([&] {
    const auto n = [](std::size_t count) { return static_cast<std::int64_t>(count); };
    const cuda::PredictWindows in{.batch = n(c.batch),
                                  .tokens = n(c.tokens),
                                  .hidden = n(c.hidden),
                                  .taps = n(c.taps),
                                  .left = n(c.left),
                                  .channels = n(c.channels),
                                  .sizes = n(c.sizes),
                                  .type = type,
                                  .size_range = static_cast<float>(c.size_range),
                                  .shift = static_cast<float>(Formula::kShift),
                                  .least = static_cast<float>(Formula::kLeast),
                                  .span = static_cast<float>(Formula::kSpan),
                                  .product = product.data(),
                                  .bias = bias.data<float>(),
                                  .weight = weight.data<float>(),
                                  .out_bias = out_bias.data<float>()};
    EXPECT_TRUE(cuda::has_predict_windows(in));
    std::vector<Values> all;
    all.emplace_back(Type::f32, dl.size());      // log_weight
    all.emplace_back(Type::f32, dsigma.size());  // sigma
    all.emplace_back(Type::f32, dsigma.size());  // u
    all.emplace_back(type, product.size());
    all.emplace_back(Type::f32, weight.size() + bias.size() + out_bias.size());
    EXPECT_EQ(cuda::predict_windows(in, all[0].data<float>(), all[1].data<float>(), all[2].data<float>(), nullptr),
              cudaSuccess);
    Values workspace(Type::f32, cuda::predict_windows_backward_workspace(in) / sizeof(float));
    EXPECT_EQ(cuda::predict_windows_backward(in, all[2].data<float>(), dl.data<float>(), dsigma.data<float>(),
                                             all[3].data(), all[4].data<float>(), workspace.data(), nullptr),
              cudaSuccess);
    return all;
  });

  const Formula formula(c, product, bias, weight, out_bias);
  std::vector<Sum> l(dl.size()), sigma(dsigma.size()), u(dsigma.size()), dproduct(product.size());
  std::vector<Sum> sums(weight.size() + bias.size() + out_bias.size());
  std::vector<Sum> dh(rows * c.hidden);
  auto* const dbias = sums.data() + weight.size();
  auto* const dout_bias = dbias + bias.size();
  for (std::size_t b = 0; b < c.batch; ++b) {
    for (std::size_t i = 0; i < c.channels; ++i) {
      for (std::size_t t = 0; t < c.tokens; ++t) {
        const auto& of_u = formula.u[(b * c.channels + i) * c.tokens + t];
        Sum g, dlogit;
        if (formula.is_size(i)) {
          const auto at = (b * c.sizes + i - weights) * c.tokens + t;
          const double share = formula.share(i, of_u.value), spread = share * (1 - share) * Formula::kSpan;
          u[at] = of_u;
          const double magnitude = of_u.size + std::fabs(out_bias[i]) + 2;
          sigma[at] = {Formula::kLeast + Formula::kSpan * share, Formula::kLeast + Formula::kSpan * share * magnitude};
          dlogit = {dsigma[at] * spread, std::fabs(dsigma[at]) * spread * magnitude};
          // tanh near 1 leaves 1 - tanh^2 with the rounding of 1
          g = {dlogit.value * formula.slope(of_u.value), dlogit.size * (1 + of_u.size)};
        } else {
          const auto at = (b * weights + i) * c.tokens + t;
          l[at] = {of_u.value + out_bias[i], of_u.size + std::fabs(out_bias[i])};
          g = dlogit = {dl[at], std::fabs(dl[at])};
        }
        dout_bias[i].value += dlogit.value;
        dout_bias[i].size += dlogit.size;
        formula.each_tap(t, [&](std::size_t k, std::size_t source) {
          for (std::size_t h = 0; h < c.hidden; ++h) {
            const auto of_hidden = (b * c.tokens + source) * c.hidden + h;
            const auto& z = formula.z[of_hidden];
            auto& dw = sums[formula.weight_at(i, h, k)];
            dw.value += g.value * gelu(z.value);
            dw.size += g.size * (z.size + 1);
            dh[of_hidden].value += g.value * weight[formula.weight_at(i, h, k)];
            dh[of_hidden].size += g.size * std::fabs(weight[formula.weight_at(i, h, k)]);
          }
        });
      }
    }
    for (std::size_t t = 0; t < c.tokens; ++t) {
      for (std::size_t h = 0; h < c.hidden; ++h) {
        const auto at = (b * c.tokens + t) * c.hidden + h;
        const Sum dz{dh[at].value * gelu_slope(formula.z[at].value), dh[at].size * (formula.z[at].size + 1)};
        dbias[h].value += dz.value;
        dbias[h].size += dz.size;
        formula.each_tap(
            t, [&](std::size_t k, std::size_t source) { dproduct[formula.product_at(b, source, k, h)] = dz; });
      }
    }
  }
  constexpr double kRoundings = 16;
  expect_near(results[0], l, kRoundings);
  expect_near(results[1], sigma, kRoundings);
  expect_near(results[2], u, kRoundings);
  expect_near(results[3], dproduct, kRoundings);
  expect_near(results[4], sums, kRoundings);
}

TEST(CudaPredictWindows, IsTheFormulaWithItsGradients) {
  for (const auto type : {Type::f32, Type::bf16, Type::f16}) {
    for (const auto& c : kCases) {
      SCOPED_TRACE(::testing::Message() << name_of(type) << " " << text_of(c));
      expect_formula(type, c);
    }
  }
}

// More tiles than there are blocks to add up sums.
TEST(CudaPredictWindows, AddsUpSeveralTiles) { expect_formula(Type::bf16, {1, 17000, 8, 2, 1, 2, 1, 2}); }

TEST(CudaPredictWindows, IsNotMadeForAllSizes) {
  cuda::PredictWindows in{.batch = 1, .tokens = 8, .hidden = 64, .taps = 3, .left = 2, .channels = 2, .sizes = 1};
  EXPECT_TRUE(cuda::has_predict_windows(in));
  in.hidden = 20;
  EXPECT_FALSE(cuda::has_predict_windows(in));
  in.hidden = 128;
  EXPECT_FALSE(cuda::has_predict_windows(in));
  in.hidden = 64;
  in.taps = 5;
  EXPECT_FALSE(cuda::has_predict_windows(in));
  in.taps = 3;
  in.channels = 33;
  EXPECT_FALSE(cuda::has_predict_windows(in));
}

}  // namespace
}  // namespace contextpool::testing
