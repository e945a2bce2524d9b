// The CUDA kernels of dynamic_convolution against the formula in float64, and what their bits depend on.
#include "kernels/cuda/dynamic_convolution/dynamic_convolution.h"

#include "values.h"

namespace contextpool::testing {
namespace {

struct Case {
  std::size_t batch, tokens, targets, channels, taps, rank, left;
  std::size_t beside = 0;  // channels between the tokens of x, and tokens between its rows
};

struct Problem {
  Case c;
  bool residual;
  Values x, inner, up, weight, dy;

  Problem(Type type, const Case& c, bool residual)
      : c(c),
        residual(residual),
        x(draw(type, c.batch * (c.tokens + c.beside) * (c.channels + c.beside), 1)),
        inner(draw(Type::f32, c.batch * c.targets * c.rank, 2)),
        up(draw(Type::f32, c.taps * c.channels * c.rank, 3)),
        weight(draw(Type::f32, c.channels * c.taps, 4)),
        dy(draw(type, c.batch * c.targets * c.channels, 5)) {
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
  std::size_t at_dx(std::size_t b, std::size_t i, std::size_t d) const { return (b * c.tokens + i) * c.channels + d; }
  std::size_t at_y(std::size_t b, std::size_t m, std::size_t d) const { return (b * c.targets + m) * c.channels + d; }
  std::size_t at_inner(std::size_t b, std::size_t m, std::size_t r) const { return (b * c.targets + m) * c.rank + r; }
  std::size_t at_up(std::size_t k, std::size_t d, std::size_t r) const { return (k * c.channels + d) * c.rank + r; }
  // Of the sums: r == rank is that of weight.
  std::size_t at_sum(std::size_t k, std::size_t r, std::size_t d) const {
    return (k * (c.rank + 1) + r) * c.channels + d;
  }

  cuda::DynamicConvolution args() const {
    const auto whole = [](std::size_t v) { return static_cast<std::int64_t>(v); };
    return {.batch = whole(c.batch),
            .tokens = whole(c.tokens),
            .targets = whole(c.targets),
            .channels = whole(c.channels),
            .taps = whole(c.taps),
            .rank = whole(c.rank),
            .left = whole(c.left),
            .residual = residual,
            .type = x.type(),
            .x = x.data(),
            .x_batch_stride = whole((c.tokens + c.beside) * (c.channels + c.beside)),
            .x_token_stride = whole(c.channels + c.beside),
            .inner = inner.data<float>(),
            .up = up.data<float>(),
            .weight = weight.data<float>()};
  }

  // y, dx, dinner, and the sums of dup and dweight
  std::vector<Values> results() const {
    return in_any_order([&] {
      const auto in = args();
      EXPECT_TRUE(cuda::dynamic_convolution_fits(in));
      std::vector<Values> all;
      all.emplace_back(x.type(), dy.size());
      all.emplace_back(x.type(), c.batch * c.tokens * c.channels);
      all.emplace_back(Type::f32, inner.size());
      all.emplace_back(Type::f32, c.taps * (c.rank + 1) * c.channels);
      EXPECT_EQ(cuda::dynamic_convolution(in, all[0].data(), nullptr), cudaSuccess);
      Values workspace(Type::f32, cuda::dynamic_convolution_backward_workspace(in) / 4);
      EXPECT_EQ(cuda::dynamic_convolution_backward(in, dy.data(), all[1].data(), all[2].data<float>(),
                                                   all[3].data<float>(), workspace.data(), nullptr),
                cudaSuccess);
      return all;
    });
  }

  // Those of the formula.
  std::vector<std::vector<Sum>> exact() const {
    std::vector<Sum> y(dy.size()), dx(c.batch * c.tokens * c.channels), dinner(inner.size()),
        sums(c.taps * (c.rank + 1) * c.channels);
    for (std::size_t b = 0; b < c.batch; ++b) {
      for (std::size_t m = 0; m < c.targets; ++m) {
        const auto i = c.tokens - c.targets + m;
        for (std::size_t d = 0; d < c.channels; ++d) {
          const double g = dy[at_y(b, m, d)];
          if (residual) y[at_y(b, m, d)] += x[at_x(b, i, d)];
          if (residual) dx[at_dx(b, i, d)] += g;
          for (std::size_t k = 0; k < c.taps; ++k) {
            if (i + k < c.left || i + k - c.left >= c.tokens) continue;
            const auto j = i + k - c.left;
            const double source = x[at_x(b, j, d)];
            const auto add = [&](double coefficient) {
              y[at_y(b, m, d)] += coefficient * source;
              dx[at_dx(b, j, d)] += coefficient * g;
            };
            add(weight[d * c.taps + k]);
            sums[at_sum(k, c.rank, d)] += g * source;
            for (std::size_t r = 0; r < c.rank; ++r) {
              add(up[at_up(k, d, r)] * inner[at_inner(b, m, r)]);
              sums[at_sum(k, r, d)] += g * source * inner[at_inner(b, m, r)];
              dinner[at_inner(b, m, r)] += up[at_up(k, d, r)] * g * source;
            }
          }
        }
      }
    }
    return {std::move(y), std::move(dx), std::move(dinner), std::move(sums)};
  }

  void expect_formula() const {
    SCOPED_TRACE(::testing::Message() << name_of(x.type()) << " " << c.batch << " x " << c.tokens << " (" << c.targets
                                      << " targets) x " << c.channels << ", " << c.taps << " taps of rank " << c.rank
                                      << ", left " << c.left << ", residual " << residual << ", beside " << c.beside);
    const auto got = results();
    const auto want = exact();
    constexpr const char* kNames[] = {"y", "dx", "dinner", "dup and dweight"};
    for (std::size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(kNames[i]);
      expect_near(got[i], want[i], i < 2 ? 24 : 48);
    }
  }
};

constexpr Type kTypes[] = {Type::f32, Type::bf16, Type::f16};

TEST(CudaDynamicConvolution, IsTheFormulaForAnyTapsAndRank) {
  for (const auto type : kTypes) {
    for (const std::size_t taps : {1, 2, 3, 4}) {
      for (std::size_t left = 0; left < taps; ++left) {
        for (const std::size_t tokens : {1, 3, 9}) {  // fewer than taps, whole tiles or not
          Problem(type, {2, tokens, tokens, 5, taps, 1 + 5 * left, left}, left > 0).expect_formula();
        }
      }
    }
    Problem(type, {1, 21, 21, 6, 4, 16, 3}, true).expect_formula();
  }
}

// Runs of 64 tokens, and several blocks side by side.
TEST(CudaDynamicConvolution, IsTheFormulaAcrossRunsAndBlocks) {
  for (const auto type : kTypes) {
    Problem(type, {2, 131, 131, 34, 4, 15, 3}, true).expect_formula();
    Problem(type, {1, 128, 128, 300, 3, 4, 1}, false).expect_formula();
    Problem(type, {1, 70, 70, 130, 2, 16, 0}, true).expect_formula();
  }
}

// More runs than blocks behind each other have.
TEST(CudaDynamicConvolution, IsTheFormulaInManyRows) {
  Problem(Type::bf16, {1030, 2, 2, 4, 4, 3, 3}, true).expect_formula();
}

TEST(CudaDynamicConvolution, TakesTheLastTokensAsTargets) {
  for (const auto type : kTypes) {
    for (const std::size_t targets : {1, 2, 66}) {
      for (const std::size_t left : {0, 1, 3}) {
        Problem(type, {2, 70, targets, 8, 4, 3, left, left}, true).expect_formula();
      }
    }
  }
}

// Infinities and NaN reach the tokens whose taps read them, and nothing else.
TEST(CudaDynamicConvolution, LetsNanThroughWhereItIsReadAndNowhereElse) {
  for (const auto& [taps, left] : {std::pair<std::size_t, std::size_t>{4, 3}, {3, 0}, {2, 1}}) {
    Problem in(Type::bf16, {2, 70, 70, 8, taps, 5, left}, true);
    for (const std::size_t i : {0, 20, 69}) {
      in.x.set(in.at_x(1, i, 3), kNan);
      in.dy.set(in.at_y(1, i, 5), kNan);
    }
    in.inner.set(in.at_inner(0, 33, 2), kNan);
    in.weight.set(6 * taps, kNan);
    in.weight.set(7 * taps + taps - 1, kInfinity);
    in.expect_formula();
  }
}

// A token's bits are the same in a longer row, in another batch and beside other tokens.
TEST(CudaDynamicConvolutionBits, DependOnTheTokensOfTheTapsAlone) {
  for (const auto type : {Type::f32, Type::bf16}) {
    for (const std::size_t taps : {3, 4}) {
      constexpr std::size_t kChannels = 8, kRank = 7, kPart = 61;
      Problem in(type, {1, 200, 200, kChannels, taps, kRank, taps - 1}, true);
      const auto whole = in.results();
      for (const std::size_t first : {0, 1, 100, 139}) {
        Problem part(type, {1, kPart, kPart, kChannels, taps, kRank, taps - 1}, true);
        for (std::size_t i = 0; i < kPart * kChannels; ++i) {
          part.x.set(i, in.x[first * kChannels + i]);
          part.dy.set(i, in.dy[first * kChannels + i]);
        }
        for (std::size_t i = 0; i < kPart * kRank; ++i) part.inner.set(i, in.inner[first * kRank + i]);
        const auto of_part = part.results();
        const std::size_t from = first == 0 ? 0 : taps - 1, end = kPart - (taps - 1);
        for (std::size_t i = from * kChannels; i < kPart * kChannels; ++i) {
          ASSERT_EQ(of_part[0][i], whole[0][first * kChannels + i]) << i;
        }
        for (std::size_t i = 0; i < end * kChannels; ++i) {
          ASSERT_EQ(of_part[1][i], whole[1][first * kChannels + i]) << i;
        }
        for (std::size_t i = from * kRank; i < kPart * kRank; ++i) {
          ASSERT_EQ(of_part[2][i], whole[2][first * kRank + i]) << i;
        }
      }
    }
  }
}

TEST(CudaDynamicConvolution, SaysWhatItHasNoKernelsFor) {
  const auto fits = [](auto change) {
    auto args = Problem(Type::f32, {1, 2, 2, 4, 4, 3, 3}, false).args();
    change(args);
    return cuda::dynamic_convolution_fits(args);
  };
  EXPECT_TRUE(fits([](auto&) {}));
  EXPECT_FALSE(fits([](auto& a) { a.taps = 5; }));
  EXPECT_FALSE(fits([](auto& a) { a.rank = 17; }));
  EXPECT_FALSE(fits([](auto& a) { a.type = Type::f64; }));
  EXPECT_FALSE(fits([](auto& a) { a.tokens = std::int64_t{1} << 31; }));
}

}  // namespace
}  // namespace contextpool::testing
