// The CUDA kernels of short_convolution against the formula in float64, and what their bits depend on.
#include "kernels/cuda/short_convolution/short_convolution.h"

#include "values.h"

namespace contextpool::testing {
namespace {

struct Case {
  std::size_t batch, tokens, channels, taps, left;
  std::size_t skipped = 0;  // values before the memory of x and of the results
  std::size_t beside = 0;   // channels between the tokens of x, and tokens between its rows
};

struct Problem {
  Case c;
  bool residual, with_bias;
  Values x, weight, bias, dy;

  Problem(Type type, const Case& c, bool residual, bool with_bias)
      : c(c),
        residual(residual),
        with_bias(with_bias),
        x(draw(type, c.batch * (c.tokens + c.beside) * (c.channels + c.beside), 1, c.skipped)),
        weight(draw(Type::f32, c.taps * c.channels, 2)),
        bias(draw(Type::f32, c.channels, 3)),
        dy(draw(type, c.batch * c.tokens * c.channels, 4)) {
    // What is beside x does not exist.
    for (std::size_t b = 0; b < c.batch; ++b) {
      for (std::size_t i = 0; i < c.tokens + c.beside; ++i) {
        for (std::size_t d = 0; d < c.channels + c.beside; ++d) {
          if (i >= c.tokens || d >= c.channels) x.set(at_x(b, i, d), kNan);
        }
      }
    }
  }

  std::size_t at_x(std::size_t b, std::size_t i, std::size_t d) const {
    return (b * (c.tokens + c.beside) + i) * (c.channels + c.beside) + d;
  }
  std::size_t at(std::size_t b, std::size_t i, std::size_t d) const { return (b * c.tokens + i) * c.channels + d; }

  cuda::ShortConvolution args() const {
    const auto token = static_cast<std::int64_t>(c.channels + c.beside);
    return {.batch = static_cast<std::int64_t>(c.batch),
            .tokens = static_cast<std::int64_t>(c.tokens),
            .channels = static_cast<std::int64_t>(c.channels),
            .taps = static_cast<std::int64_t>(c.taps),
            .left = static_cast<std::int64_t>(c.left),
            .residual = residual,
            .type = x.type(),
            .x = x.data(),
            .x_batch_stride = static_cast<std::int64_t>(c.tokens + c.beside) * token,
            .x_token_stride = token,
            .weight = weight.data<float>(),
            .bias = with_bias ? bias.data<float>() : nullptr};
  }

  // y, dx, and dweight with dbias
  std::vector<Values> results() const {
    return in_any_order([&] {
      const auto in = args();
      EXPECT_TRUE(cuda::short_convolution_fits(in));
      std::vector<Values> all;
      all.emplace_back(x.type(), dy.size(), c.skipped);
      all.emplace_back(x.type(), dy.size(), c.skipped);
      all.emplace_back(Type::f32, (c.taps + 1) * c.channels);
      EXPECT_EQ(cuda::short_convolution(in, all[0].data(), nullptr), cudaSuccess);
      Values workspace(Type::f32, cuda::short_convolution_backward_workspace(in, dy.data(), all[1].data()) / 4);
      EXPECT_EQ(cuda::short_convolution_backward(in, dy.data(), all[1].data(), all[2].data<float>(), workspace.data(),
                                                 nullptr),
                cudaSuccess);
      return all;
    });
  }

  // Those of the formula.
  std::vector<std::vector<Sum>> exact() const {
    std::vector<Sum> y(dy.size()), dx(dy.size()), dweight((c.taps + 1) * c.channels);
    for (std::size_t b = 0; b < c.batch; ++b) {
      for (std::size_t i = 0; i < c.tokens; ++i) {
        for (std::size_t d = 0; d < c.channels; ++d) {
          const double g = dy[at(b, i, d)];
          if (with_bias) y[at(b, i, d)] += bias[d];
          if (residual) y[at(b, i, d)] += x[at_x(b, i, d)];
          if (residual) dx[at(b, i, d)] += g;
          dweight[c.taps * c.channels + d] += g;
          for (std::size_t k = 0; k < c.taps; ++k) {
            if (i + k < c.left || i + k - c.left >= c.tokens) continue;
            const auto j = i + k - c.left;
            y[at(b, i, d)] += weight[k * c.channels + d] * x[at_x(b, j, d)];
            dx[at(b, j, d)] += weight[k * c.channels + d] * g;
            dweight[k * c.channels + d] += g * x[at_x(b, j, d)];
          }
        }
      }
    }
    return {std::move(y), std::move(dx), std::move(dweight)};
  }

  void expect_formula() const {
    SCOPED_TRACE(::testing::Message() << name_of(x.type()) << " " << c.batch << " x " << c.tokens << " x " << c.channels
                                      << ", " << c.taps << " taps, left " << c.left << ", residual " << residual
                                      << ", skipped " << c.skipped << ", beside " << c.beside);
    const auto got = results();
    const auto want = exact();
    for (std::size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(i == 0 ? "y" : i == 1 ? "dx" : "dweight and dbias");
      expect_near(got[i], want[i], i < 2 ? 8 : 32);
    }
  }
};

constexpr Type kTypes[] = {Type::f32, Type::bf16, Type::f16};

TEST(CudaShortConvolution, IsTheFormulaForAnyTaps) {
  for (const auto type : kTypes) {
    for (const std::size_t taps : {1, 2, 3, 4, 5, 8, 15, 16, 31, 32}) {
      for (const std::size_t left : {std::size_t{0}, taps / 2, taps - 1}) {
        for (const std::size_t tokens : {1, 3, 7, 16, 45}) {  // fewer than taps, whole tiles or not
          Problem(type, {2, tokens, 8, taps, left}, left > 0, tokens > 3).expect_formula();
        }
      }
    }
  }
}

// Runs of 16 tokens, several blocks of them and of channels; lanes that have no channels.
TEST(CudaShortConvolution, IsTheFormulaAcrossRunsAndBlocks) {
  for (const auto type : kTypes) {
    for (const auto& [taps, left] :
         {std::pair<std::size_t, std::size_t>{4, 3}, {3, 1}, {7, 2}, {15, 14}, {15, 7}, {21, 20}}) {
      for (const std::size_t channels : {4, 264})
        Problem(type, {3, 203, channels, taps, left}, true, true).expect_formula();
    }
  }
}

// Longer runs, and shares of several of them.
TEST(CudaShortConvolution, IsTheFormulaInLongRuns) {
  Problem(Type::bf16, {1, 70001, 64, 4, 3}, true, true).expect_formula();
  Problem(Type::f32, {40000, 2, 2, 3, 1}, false, true).expect_formula();
  Problem(Type::f16, {5000, 1, 72, 3, 1}, false, true).expect_formula();
}

TEST(CudaShortConvolution, TakesAnyChannelsAddressesAndStrides) {
  for (const auto type : kTypes) {
    for (const auto& [taps, left] : {std::pair<std::size_t, std::size_t>{4, 3}, {15, 7}, {6, 0}}) {
      for (const std::size_t channels : {1, 5, 34})
        Problem(type, {2, 37, channels, taps, left}, true, true).expect_formula();
      for (const std::size_t skipped : {1, 2, 3}) {
        Problem(type, {2, 37, 8, taps, left, skipped}, false, false).expect_formula();
      }
      for (const std::size_t beside : {1, 4, 8}) {
        Problem(type, {2, 37, 8, taps, left, 0, beside}, true, false).expect_formula();
      }
    }
  }
}

// Infinities and NaN reach the tokens whose taps read them, and nothing else; also a weight's at the ends of a row.
TEST(CudaShortConvolution, LetsNanThroughWhereItIsReadAndNowhereElse) {
  for (const auto& [taps, left] : {std::pair<std::size_t, std::size_t>{4, 3}, {3, 0}, {15, 7}, {9, 8}}) {
    Problem in(Type::bf16, {2, 53, 8, taps, left}, true, true);
    for (const std::size_t i : {0, 20, 52}) {
      in.x.set(in.at_x(1, i, 3), kNan);
      in.dy.set(in.at(1, i, 5), kNan);
    }
    in.x.set(in.at_x(0, 0, 1), kNan);  // in dweight: of the taps that meet it alone
    in.x.set(in.at_x(0, 52, 2), kNan);
    in.weight.set(0 * 8 + 6, kNan);
    in.weight.set((taps - 1) * 8 + 7, kInfinity);
    in.expect_formula();
  }
}

// A token's bits are the same in a longer row, in another batch, beside other tokens and for memory at any address.
TEST(CudaShortConvolutionBits, DependOnTheTokensOfTheTapsAlone) {
  for (const auto type : {Type::f32, Type::bf16}) {
    for (const std::size_t taps : {3, 4, 8, 15, 20}) {
      const Case whole{1, 300, 8, taps, taps - 1};
      Problem in(type, whole, true, true);
      const auto y = in.results();
      for (const std::size_t first : {0, 1, 100, 139}) {
        for (const std::size_t skipped : {0, 1}) {
          Problem part(type, {1, 61, 8, taps, taps - 1, skipped}, true, true);
          for (std::size_t i = 0; i < 61 * 8; ++i) {
            part.x.set(i, in.x[first * 8 + i]);
            part.dy.set(i, in.dy[first * 8 + i]);
          }
          const auto of_part = part.results();
          const std::size_t from = first == 0 ? 0 : taps - 1;
          for (std::size_t i = from * 8; i < 61 * 8; ++i) ASSERT_EQ(of_part[0][i], y[0][first * 8 + i]) << i;
          const std::size_t end = 61 - (taps - 1);
          for (std::size_t i = 0; i < end * 8; ++i) ASSERT_EQ(of_part[1][i], y[1][first * 8 + i]) << i;
        }
      }
    }
  }
}

TEST(CudaShortConvolution, SaysWhatItHasNoKernelsFor) {
  const auto fits = [](auto change) {
    auto args = Problem(Type::f32, {1, 2, 4, 4, 3}, false, false).args();
    change(args);
    return cuda::short_convolution_fits(args);
  };
  EXPECT_TRUE(fits([](auto&) {}));
  EXPECT_FALSE(fits([](auto& a) { a.taps = 33; }));
  EXPECT_FALSE(fits([](auto& a) { a.type = Type::f64; }));
  EXPECT_FALSE(fits([](auto& a) { a.tokens = std::int64_t{1} << 31; }));
  EXPECT_FALSE(fits([](auto& a) { a.x_token_stride = std::int64_t{1} << 28; }));
}

}  // namespace
}  // namespace contextpool::testing
