// pool1d refuses bad input with a message that names the operator, what was expected and what came; takes dimensions of
// size zero; and counts in 64 bits.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "contextpool/ops/pool1d.h"
#include "pool1d_cases.h"

namespace contextpool::testing {
namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "(nothing was refused)";
}

// The message names the operator and holds all of `parts`.
void expect_refused(const std::function<void()>& call, const std::vector<std::string>& parts) {
  const auto message = message_of(call);
  EXPECT_NE(message.find("contextpool::pool1d"), std::string::npos) << message;
  for (const auto& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
}

class Pool1dErrors : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  at::TensorOptions f32 = at::TensorOptions(GetParam()).dtype(at::kFloat);
  at::Tensor x = at::ones({2, 8, 4}, f32), l = at::zeros({2, 8}, f32), s = at::ones({2, 8}, f32);
};

TEST_P(Pool1dErrors, WrongRank) {
  expect_refused([&] { pool1d(at::ones({8}, f32), l, s); }, {"x", "[8]"});
  expect_refused([&] { pool1d(at::ones({}, f32), l, s); }, {"x", "[]"});
  expect_refused([&] { pool1d(x[0], l, s); }, {"log_weight", "[8, 4]", "[2, 8]"});
  expect_refused([&] { pool1d(x, l[0], s); }, {"log_weight", "[2, 8, 4]", "[8]"});
  expect_refused([&] { pool1d(x, l, s[0]); }, {"sigma", "[2, 8, 4]", "[8]"});
  expect_refused([&] { pool1d(x, l.unsqueeze(-1), s); }, {"log_weight", "[2, 8, 1]"});
  expect_refused([&] { pool1d(x, l, at::ones({}, f32)); }, {"sigma", "[]"});
}

TEST_P(Pool1dErrors, SizesThatDoNotMatch) {
  expect_refused([&] { pool1d(x, at::zeros({2, 7}, f32), s); }, {"log_weight", "7", "8"});
  expect_refused([&] { pool1d(x, at::zeros({2, 9}, f32), s); }, {"log_weight", "9", "8"});
  expect_refused([&] { pool1d(x, at::zeros({3, 8}, f32), s); }, {"log_weight", "[3, 8]", "[2, 8, 4]"});
  expect_refused([&] { pool1d(x, l, at::ones({3, 8}, f32)); }, {"sigma", "[3, 8]", "[2, 8, 4]"});
  // No broadcasting, though PyTorch usually would.
  expect_refused([&] { pool1d(x, at::zeros({1, 8}, f32), s); }, {"log_weight", "[1, 8]"});
  expect_refused([&] { pool1d(x, l, at::ones({1, 8}, f32)); }, {"sigma", "[1, 8]"});
  expect_refused([&] { pool1d(x, at::zeros({2, 1}, f32), s); }, {"log_weight", "[2, 1]"});
  const auto deep = at::ones({3, 2, 8, 4}, f32);
  expect_refused([&] { pool1d(deep, at::zeros({2, 3, 8}, f32), at::ones({3, 2, 8}, f32)); }, {"[2, 3, 8]"});
}

TEST_P(Pool1dErrors, MoreTargetsThanTokens) {
  expect_refused(
      [&] {
        pool1d(x, l, at::ones({2, 12}, f32));
      },
      {"sigma has 12 targets but x has only 8 tokens", "[2, 8, 4]", "[2, 12]"});
  expect_refused([&] { pool1d(x.slice(1, 0, 0), l.slice(1, 0, 0), at::ones({2, 1}, f32)); }, {"sigma", "[2, 1]"});
}

TEST_P(Pool1dErrors, WrongDtype) {
  for (const auto type : {at::kInt, at::kLong, at::kBool, at::kByte, at::kComplexFloat}) {
    expect_refused([&] { pool1d(x.to(type), l, s); }, {"x", "float32", c10::toString(type)});
    expect_refused([&] { pool1d(x, l.to(type), s); }, {"log_weight", c10::toString(type)});
    expect_refused([&] { pool1d(x, l, s.to(type)); }, {"sigma", c10::toString(type)});
  }
  expect_refused([&] { pool1d(x, l.to(at::kDouble), s); }, {"log_weight", "Float", "Double"});
  expect_refused([&] { pool1d(x, l, s.to(at::kDouble)); }, {"sigma", "Float", "Double"});
  expect_refused([&] { pool1d(x.to(at::kDouble), l, s); }, {"log_weight", "Double", "Float"});
  expect_refused([&] { pool1d(x.to(at::kBFloat16), l.to(at::kBFloat16), s); }, {"log_weight", "Float", "BFloat16"});
  expect_refused([&] { pool1d(x.to(at::kHalf), l, s.to(at::kHalf)); }, {"sigma", "Float", "Half"});
}

TEST_P(Pool1dErrors, SeveralDevices) {
  const auto here = c10::DeviceTypeName(GetParam(), true);
  expect_refused([&] { pool1d(x, l.to(at::kMeta), s); }, {"device", here, "meta"});
  expect_refused([&] { pool1d(x, l, s.to(at::kMeta)); }, {"device", here, "meta"});
  expect_refused([&] { pool1d(x.to(at::kMeta), l, s); }, {"device", here, "meta"});
}

TEST_P(Pool1dErrors, UnknownAlgorithm) {
  for (const auto* name : {"fast", "", "Auto", "dense ", "automatic"}) {
    expect_refused([&] { pool1d(x, l, s, false, name); }, {"algorithm", "auto", "dense", "window", "pyramid", name});
  }
}

TEST_P(Pool1dErrors, GradientThatIsNotOfTheResult) {
  const auto dy = at::ones({2, 8, 4}, f32);
  expect_refused([&] { pool1d_backward(dy.slice(1, 1), x, l, s, false, "auto"); },
                 {"gradient", "[2, 7, 4]", "[2, 8, 4]"});
  expect_refused([&] { pool1d_backward(dy.to(at::kDouble), x, l, s, false, "auto"); }, {"gradient", "Double"});
  expect_refused([&] { pool1d_backward(dy, x, l, s, false, "fast"); }, {"algorithm", "fast"});
}

TEST_P(Pool1dErrors, SecondDerivativeIsRefused) {
  const auto a = x.clone().set_requires_grad(true);
  const auto y = pool1d(a, l, s);
  y.backward(at::ones_like(y), true, /*create_graph=*/true);
  expect_refused([&] { a.grad().sum().backward(); }, {"second", "not available"});
}

TEST_P(Pool1dErrors, DimensionsOfSizeZeroGiveEmptyResultsAndNoGradient) {
  struct Shape {
    int64_t batch, tokens, targets, channels;
  };
  for (const auto& [batch, tokens, targets, channels] : {Shape{0, 8, 8, 4}, Shape{2, 0, 0, 4}, Shape{2, 8, 0, 4},
                                                         Shape{2, 8, 8, 0}, Shape{0, 0, 0, 0}, Shape{0, 8, 3, 0}}) {
    for (const auto* algorithm : {"auto", "dense", "window", "pyramid"}) {
      SCOPED_TRACE(::testing::Message() << batch << " " << tokens << " " << targets << " " << channels << algorithm);
      const Inputs in = {at::ones({batch, tokens, channels}, f32), at::zeros({batch, tokens}, f32),
                         at::ones({batch, targets}, f32), at::ones({batch, targets, channels}, f32)};
      for (const bool causal : {false, true}) {
        const Outputs out = run(in, causal, algorithm);
        EXPECT_EQ(out.y.sizes(), in.dy.sizes());
        EXPECT_EQ(out.dx.sizes(), in.x.sizes());
        EXPECT_EQ(out.dlog_weight.sizes(), in.log_weight.sizes());
        EXPECT_EQ(out.dsigma.sizes(), in.sigma.sizes());
        for (const auto& t : out.list()) EXPECT_TRUE(t.eq(0).all().item<bool>());
      }
    }
  }
  EXPECT_EQ(pool1d(at::ones({3, 0, 2, 5, 4}, f32), at::zeros({3, 0, 2, 5}, f32), at::ones({3, 0, 2, 1}, f32)).sizes(),
            (std::vector<int64_t>{3, 0, 2, 1, 4}));
}

const auto device_name = [](const ::testing::TestParamInfo<at::DeviceType>& info) { return name(info.param); };
INSTANTIATE_TEST_SUITE_P(All, Pool1dErrors, ::testing::ValuesIn(devices()), device_name);

// --- beyond 32 bits --------------------------------------------------------------------------------------------------

// Memory these tests may touch; most of what they reserve is never touched.
bool have_gigabytes(double wanted) {
  const auto pages = static_cast<double>(sysconf(_SC_AVPHYS_PAGES));
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE)) > wanted * 1e9;
}

class Pool1dLarge : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  at::TensorOptions bf16 = at::TensorOptions(GetParam()).dtype(at::kBFloat16);
  at::TensorOptions f32 = at::TensorOptions(GetParam()).dtype(at::kFloat);
  static constexpr int64_t kBeyond = (int64_t{1} << 31) + 64;  // elements
};

TEST_P(Pool1dLarge, StridesBeyond32Bits) {
  if (!have_gigabytes(6)) GTEST_SKIP() << "not enough memory";
  const auto storage = at::empty({kBeyond + 5000}, bf16);
  const auto dy = at::randn({2, 50, 8}, f32).to(at::kBFloat16);
  const auto l = at::randn({2, 50}, f32), s = at::rand({2, 50}, f32).mul(5);
  // Rows of the batch, then tokens, spread over more elements than 32 bits count.
  for (const auto& strides : {std::vector<int64_t>{kBeyond, 8, 1}, {8, kBeyond / 49, 1}}) {
    const auto x = storage.as_strided({2, 50, 8}, strides);
    x.copy_(at::randn({2, 50, 8}, f32));
    for (const auto algorithm : kAlgorithms) {
      for (const bool causal : {false, true}) {
        expect_same(run({x, l, s, dy}, causal, name(algorithm)),
                    run({x.contiguous(), l, s, dy}, causal, name(algorithm)));
      }
    }
  }
}

TEST_P(Pool1dLarge, FeaturesBeyond32BitsInOneStepOfDecoding) {
  if (!have_gigabytes(6)) GTEST_SKIP() << "not enough memory";
  // One target at the end of 2^31 features, of which its window covers the last few rows.
  const int64_t channels = 1024, tokens = kBeyond / channels + 1, near = 200;
  const auto x = at::empty({1, tokens, channels}, bf16);
  x.slice(1, tokens - near).copy_(at::randn({1, near, channels}, f32));
  const auto l = at::zeros({1, tokens}, f32), s = at::full({1, 1}, 3, f32);
  const auto want = pool1d(x.slice(1, tokens - near), l.slice(1, tokens - near), s);
  for (const auto* algorithm : {"auto", "window"}) {
    for (const bool causal : {false, true}) {
      EXPECT_TRUE(same(pool1d(x, l, s, causal, algorithm), want)) << algorithm;
    }
  }
}

TEST_P(Pool1dLarge, ResultBeyond32Bits) {
  if (!have_gigabytes(9)) GTEST_SKIP() << "not enough memory";
  // One row of features seen as many; every target is its own token.
  const int64_t channels = 4096, tokens = kBeyond / channels + 1;
  const auto row = at::randn({channels}, f32).to(at::kBFloat16);
  const auto y = pool1d(row.expand({1, tokens, channels}), at::zeros({1, tokens}, f32), at::zeros({1, tokens}, f32),
                        false, "window");
  ASSERT_GT(y.numel(), int64_t{1} << 31);
  for (const int64_t i : {int64_t{0}, tokens / 2, tokens - 2, tokens - 1}) EXPECT_TRUE(same(y[0][i], row)) << i;
}

TEST_P(Pool1dLarge, PairsBeyond32Bits) {
  // 70000 x 70000 pairs; the reference looks at a few targets.
  Case c;
  c.tokens = c.targets = 70000;
  c.sizes = Sizes::log_uniform;
  for (const auto algorithm : {Algorithm::automatic, Algorithm::window, Algorithm::pyramid}) {
    for (const bool causal : {false, true}) {
      c.algorithm = algorithm;
      c.causal = causal;
      const Problem p = make_problem(c);
      expect_accurate(p, values_of(run(tensors_of(p, GetParam()), c)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Pool1dLarge, ::testing::ValuesIn(devices()), device_name);

}  // namespace
}  // namespace contextpool::testing
