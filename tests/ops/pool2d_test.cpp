// contextpool::pool2d on tensors: the accuracy contract in every dtype and memory format, formats and strides kept,
// limits and masks, dimensions of size zero, and errors that name the operator, what was expected and what came.
#include "contextpool/ops/pool2d.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "pool2d_cases.h"

namespace contextpool::testing {
namespace {

class Pool2d : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  static at::TensorOptions features(Type type) { return at::TensorOptions(GetParam()).dtype(scalar(type)); }
  static at::TensorOptions weights(Type type) { return features(weight_type(type)); }

  at::TensorOptions f32 = features(Type::f32);
};

TEST_P(Pool2d, IsAccurate) {
  for (const auto& c : covering_cases_2d(5)) {
    SCOPED_TRACE(name(c));
    const Problem2d p = make_problem(c);
    const Outputs out = run2d(tensors_of(p, GetParam()), {c.stride_h, c.stride_w}, name(c.algorithm));
    EXPECT_EQ(out.y.sizes(), (std::vector<int64_t>{c.batch, c.channels, c.out_height(), c.out_width()}));
    EXPECT_EQ(out.y.scalar_type(), scalar(c.type));
    EXPECT_TRUE(out.y.is_contiguous(c.channels_last ? kLast : kFirst));
    EXPECT_EQ(out.dlog_weight.scalar_type(), scalar(weight_type(c.type)));
    expect_accurate(p, map_values_of(out));
  }
}

TEST_P(Pool2d, MemoryFormatIsKeptAndDoesNotShow) {
  for (const auto type : kTypes) {
    Case2d c;
    c.batch = 2, c.height = 11, c.width = 14, c.stride_h = 2, c.channels = 19, c.type = type, c.mask = Mask::random;
    Inputs in = tensors_of(make_problem(c), GetParam());
    in.dy = at::randn(in.dy.sizes(), in.dy.options());
    const Outputs first = run2d(in, {2, 1});
    EXPECT_TRUE(first.y.is_contiguous() && first.dx.is_contiguous());
    for (const auto& dy : {in.dy, in.dy.contiguous(kLast)}) {
      const Outputs last = run2d({in.x.contiguous(kLast), in.log_weight, in.sigma, dy}, {2, 1});
      expect_same(last, first);
      EXPECT_TRUE(last.y.is_contiguous(kLast) && last.dx.is_contiguous(kLast));
    }
    for (const auto layout : {Layout::transposed, Layout::sliced}) {
      SCOPED_TRACE(name(layout));
      expect_same(run2d({laid_out(in.x, layout), laid_out(in.log_weight, layout), laid_out(in.sigma, layout),
                         laid_out(in.dy, layout)},
                        {2, 1}),
                  first);
    }
    const auto ones = at::ones({}, in.dy.options()).expand(in.dy.sizes());
    expect_same(run2d({in.x, in.log_weight, in.sigma, ones}, {2, 1}),
                run2d({in.x, in.log_weight, in.sigma, ones.contiguous()}, {2, 1}));
  }
}

TEST_P(Pool2d, ResultOfAStrideIsASampleOfTheWholeResult) {
  const auto x = at::randn({2, 5, 13, 10}, f32), l = at::randn({2, 13, 10}, f32), s = at::rand({2, 13, 10}, f32).mul(3);
  const auto whole = pool2d(x, l, s);
  for (const std::vector<int64_t>& stride : {std::vector<int64_t>{2, 2}, {2, 1}, {3, 4}, {50, int64_t{1} << 62}}) {
    const auto sampled = [&](const at::Tensor& t) {
      return t.slice(-2, 0, t.size(-2), std::min<int64_t>(stride[0], 100))
          .slice(-1, 0, t.size(-1), std::min<int64_t>(stride[1], 100));
    };
    EXPECT_TRUE(same(pool2d(x, l, sampled(s), stride), sampled(whole)));
  }
}

TEST_P(Pool2d, LimitsHoldInEveryDtypeWithFiniteGradients) {
  for (const auto type : kTypes) {
    for (const auto algorithm : kMapAlgorithms) {
      const auto options = features(type), fine = weights(type);
      const auto x = at::randn({1, 3, 6, 7}, options), l = at::zeros({1, 6, 7}, fine),
                 dy = at::randn({1, 3, 6, 7}, options);
      for (const double sigma : {0.0, -1.0, -kInf, 1e-30, 1e-6, 0.07}) {
        const auto out = run2d({x, l, at::full({1, 6, 7}, sigma, fine), dy}, {1, 1}, name(algorithm));
        EXPECT_TRUE(same(out.y, x) && same(out.dx, dy)) << sigma;
        EXPECT_TRUE(out.dlog_weight.abs().max().item<double>() < 1e-5 && out.dsigma.eq(0).all().item<bool>()) << sigma;
      }
      const auto mean = x.to(at::kDouble).mean({2, 3}, true).expand(x.sizes());
      for (const double sigma : {1e6, 1e30, kInf}) {
        const auto out = run2d({x, l, at::full({1, 6, 7}, sigma, fine), dy}, {1, 1}, name(algorithm));
        EXPECT_LT(out.y.to(at::kDouble).sub(mean).abs().max().item<double>(), type == Type::bf16 ? 0.01 : 2e-3)
            << sigma;
        for (const auto& t : out.list()) EXPECT_TRUE(t.isfinite().all().item<bool>()) << sigma;
      }
    }
  }
}

TEST_P(Pool2d, MaskedPixelsDoNotExistWhateverTheyHold) {
  for (const auto type : kTypes) {
    const auto options = features(type), fine = weights(type);
    const auto s = at::rand({1, 9, 9}, fine).mul(4), dy = at::randn({1, 4, 9, 9}, options);
    auto x = at::randn({1, 4, 9, 9}, options), l = at::randn({1, 9, 9}, fine);
    l.slice(1, 2, 6).slice(2, 3, 8).fill_(-kInf);
    const Outputs plain = run2d({x, l, s, dy}, {1, 1});
    for (const double poison : {kNaN, kInf, -kInf}) {
      x.slice(2, 2, 6).slice(3, 3, 8).fill_(poison);
      const Outputs out = run2d({x, l, s, dy}, {1, 1});
      expect_same(out, plain);
      EXPECT_TRUE(out.dx.slice(2, 2, 6).slice(3, 3, 8).eq(0).all().item<bool>());
      EXPECT_TRUE(out.dlog_weight.slice(1, 2, 6).slice(2, 3, 8).eq(0).all().item<bool>());
      for (const auto& t : out.list()) EXPECT_TRUE(t.isfinite().all().item<bool>());
    }
    // With no source at all everything is 0.
    const auto none = at::full({1, 9, 9}, -kInf, fine);
    for (const auto& t : run2d({at::full({1, 4, 9, 9}, kNaN, options), none, s, dy}, {1, 1}).list()) {
      EXPECT_TRUE(t.eq(0).all().item<bool>());
    }
  }
}

TEST_P(Pool2d, NaNSurfacesWhereItIsUsedAndOnlyThere) {
  auto x = at::randn({1, 3, 30, 30}, f32), l = at::zeros({1, 30, 30}, f32), s = at::full({1, 30, 30}, 1.0, f32);
  x.select(2, 15).select(2, 15).fill_(kNaN);
  auto y = pool2d(x, l, s).isnan();
  EXPECT_TRUE(y.slice(2, 14, 17).slice(3, 14, 17).all().item<bool>());
  EXPECT_FALSE(y.slice(2, 0, 2).any().item<bool>());
  x = at::randn({1, 3, 30, 30}, f32);
  s.select(1, 4).select(1, 5).fill_(kNaN);
  y = pool2d(x, l, s).isnan();
  EXPECT_EQ(y.sum().item<int64_t>(), 3);
  EXPECT_TRUE(y.select(2, 4).select(2, 5).all().item<bool>());
  s = at::full({1, 30, 30}, 1.0, f32);
  for (const double bad : {kNaN, kInf}) {  // an infinite weight leaves no finite average
    l.select(1, 20).select(1, 20).fill_(bad);
    y = pool2d(x, l, s).isnan();
    EXPECT_TRUE(y.slice(2, 19, 22).slice(3, 19, 22).all().item<bool>());
    EXPECT_FALSE(y.slice(2, 0, 2).any().item<bool>());
  }
}

TEST_P(Pool2d, GradientThatIsNotFiniteSpoilsWhatItsTargetSeesAndNothingElse) {
  const auto x = at::randn({1, 3, 40, 40}, f32), l = at::zeros({1, 40, 40}, f32), s = at::full({1, 40, 40}, 1.0, f32);
  for (const double bad : {kNaN, kInf}) {
    auto dy = at::ones({1, 3, 40, 40}, f32);
    dy.select(2, 8).select(2, 9).select(1, 0).fill_(bad);
    const Outputs out = run2d({x, l, s, dy}, {1, 1});
    const auto spoiled = out.dx.isfinite().logical_not();
    EXPECT_TRUE(spoiled.select(1, 0).slice(1, 7, 10).slice(2, 8, 11).all().item<bool>());
    EXPECT_FALSE(spoiled.slice(1, 1).any().item<bool>());
    EXPECT_FALSE(spoiled.slice(2, 22).any().item<bool>());  // 13 sigma away and more
    EXPECT_TRUE(out.dlog_weight.slice(1, 22).isfinite().all().item<bool>());
    EXPECT_EQ(out.dsigma.isfinite().logical_not().sum().item<int64_t>(), 1);
  }
}

TEST_P(Pool2d, DimensionsOfSizeZeroGiveEmptyResultsAndNoGradient) {
  for (const std::array<int64_t, 4>& shape :
       {std::array<int64_t, 4>{0, 3, 4, 5}, {2, 0, 4, 5}, {2, 3, 0, 5}, {2, 3, 4, 0}, {0, 0, 0, 0}}) {
    const auto [b, c, h, w] = shape;
    for (const auto format : {kFirst, kLast}) {
      const int64_t ho = (h + 1) / 2, wo = (w + 2) / 3;
      const Inputs in = {at::ones(shape, f32).contiguous(format), at::zeros({b, h, w}, f32), at::ones({b, ho, wo}, f32),
                         at::ones({b, c, ho, wo}, f32)};
      const Outputs out = run2d(in, {2, 3});
      EXPECT_EQ(out.y.sizes(), in.dy.sizes());
      EXPECT_EQ(out.dx.sizes(), in.x.sizes());
      for (const auto& t : out.list()) EXPECT_TRUE(t.eq(0).all().item<bool>());
    }
  }
}

TEST_P(Pool2d, EveryRunGivesTheSameBits) {
  for (const auto type : kTypes) {
    Case2d c;
    c.batch = 2, c.height = 30, c.width = 21, c.channels = 150, c.type = type, c.logits = Logits::light_clusters;
    Inputs in = tensors_of(make_problem(c), GetParam());
    in.dy = at::randn(in.dy.sizes(), in.dy.options());
    const Outputs once = run2d(in, {1, 1});
    for (int k = 0; k < 3; ++k) expect_same(run2d(in, {1, 1}), once);
  }
}

const auto device_name = [](const ::testing::TestParamInfo<at::DeviceType>& info) { return name(info.param); };
INSTANTIATE_TEST_SUITE_P(All, Pool2d, ::testing::ValuesIn(devices()), device_name);

// --- errors ----------------------------------------------------------------------------------------------------------

// The message names the operator and holds all of `parts`.
void expect_refused(const std::function<void()>& call, const std::vector<std::string>& parts) {
  std::string message = "(nothing was refused)";
  try {
    call();
  } catch (const c10::Error& e) {
    message = e.what_without_backtrace();
  }
  EXPECT_NE(message.find("contextpool::pool2d"), std::string::npos) << message;
  for (const auto& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
}

class Pool2dErrors : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  at::TensorOptions f32 = at::TensorOptions(GetParam()).dtype(at::kFloat);
  at::Tensor x = at::ones({2, 4, 8, 6}, f32), l = at::zeros({2, 8, 6}, f32), s = at::ones({2, 8, 6}, f32);
};

TEST_P(Pool2dErrors, ShapesThatDoNotMatch) {
  expect_refused([&] { pool2d(x[0], l, s); }, {"x", "[batch, channels, height, width]", "[4, 8, 6]"});
  expect_refused([&] { pool2d(x, l[0], s); }, {"log_weight", "[2, 4, 8, 6]", "[8, 6]"});
  expect_refused([&] { pool2d(x, l, s[0]); }, {"sigma", "[2, 4, 8, 6]", "[8, 6]"});
  expect_refused([&] { pool2d(x, l.slice(1, 1), s); }, {"log_weight is a map of 7 x 6 but x is one of 8 x 6"});
  expect_refused([&] { pool2d(x, l.transpose(1, 2), s); }, {"log_weight is a map of 6 x 8 but x is one of 8 x 6"});
  expect_refused([&] { pool2d(x, l.slice(0, 1), s); }, {"batch", "broadcast", "[1, 8, 6]", "[2, 4, 8, 6]"});
  expect_refused([&] { pool2d(x, l, s.slice(0, 1)); }, {"batch", "broadcast", "[1, 8, 6]"});
  expect_refused([&] { pool2d(x, l, s.slice(1, 0, 7)); }, {"sigma has 7 x 6 targets", "8 x 6", "[2, 7, 6]"});
  expect_refused([&] { pool2d(x, l, s, {2, 1}); }, {"sigma has 8 x 6 targets", "stride [2, 1]", "has 4 x 6"});
}

TEST_P(Pool2dErrors, Stride) {
  for (const std::vector<int64_t>& stride : {std::vector<int64_t>{0, 1}, {1, -2}, {1}, {1, 1, 1}, {}}) {
    expect_refused([&] { pool2d(x, l, s, stride); }, {"stride", "two numbers of at least 1"});
    expect_refused([&] { pool2d_backward(x, x, l, s, stride, "auto"); }, {"stride", "two numbers of at least 1"});
  }
}

TEST_P(Pool2dErrors, DtypesAndDevices) {
  expect_refused([&] { pool2d(x.to(at::kInt), l, s); }, {"x", "float32", "Int"});
  expect_refused([&] { pool2d(x, l.to(at::kDouble), s); }, {"log_weight", "Float", "Double"});
  expect_refused([&] { pool2d(x.to(at::kDouble), l.to(at::kDouble), s); }, {"sigma", "Double", "Float"});
  expect_refused([&] { pool2d(x.to(at::kHalf), l, s.to(at::kHalf)); }, {"sigma", "Float", "Half"});
  expect_refused([&] { pool2d(x, l.to(at::kMeta), s); }, {"device", name(GetParam()), "meta"});
}

TEST_P(Pool2dErrors, Algorithm) {
  for (const auto* name : {"fast", "", "Auto"}) {
    expect_refused([&] { pool2d(x, l, s, {1, 1}, name); }, {"algorithm", "auto", "dense", "window", name});
  }
  expect_refused(
      [&] {
        pool2d(x, l, s, {1, 1}, "pyramid");
      },
      {"pyramid", "sequences", "\"auto\"", "\"dense\"", "\"window\""});
}

TEST_P(Pool2dErrors, Gradient) {
  expect_refused(
      [&] {
        pool2d_backward(x.slice(2, 1), x, l, s, {1, 1}, "auto");
      },
      {"gradient", "[2, 4, 7, 6]", "[2, 4, 8, 6]"});
  expect_refused([&] { pool2d_backward(x.to(at::kDouble), x, l, s, {1, 1}, "auto"); }, {"gradient", "Double"});
  const auto a = x.clone().set_requires_grad(true);
  const auto y = pool2d(a, l, s);
  y.backward(at::ones_like(y), true, /*create_graph=*/true);
  expect_refused([&] { a.grad().sum().backward(); }, {"second", "not available"});
}

INSTANTIATE_TEST_SUITE_P(All, Pool2dErrors, ::testing::ValuesIn(devices()), device_name);

}  // namespace
}  // namespace contextpool::testing
