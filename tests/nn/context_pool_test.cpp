// ContextPool against its formulas: outputs and gradients of every option, parameter counts, the start of the sizes,
// and what is refused.
#include "contextpool/nn/context_pool.h"

#include <gtest/gtest.h>

#include "context_pool_reference.h"
#include "expect.h"

namespace contextpool::testing {
namespace {

using nn::ContextPool1d;
using nn::ContextPool2d;
using nn::ContextPool2dOptions;
using nn::ContextPoolOptions;
using torch::Tensor;

constexpr double kTolerance = 1e-11;

std::vector<Tensor> gradients(const Tensor& y, const Tensor& dy, const Tensor& x, const Parameters& parameters) {
  std::vector<Tensor> inputs{x};
  for (const auto& item : parameters) inputs.push_back(item.second);
  return torch::autograd::grad({y}, inputs, {dy}, std::nullopt, false, /*allow_unused=*/true);
}

void expect_same(const Tensor& y, const Tensor& expected, const Tensor& x, const Parameters& parameters) {
  EXPECT_LT(difference(y, expected), kTolerance);
  const auto dy = torch::randn_like(y);
  const auto got = gradients(y, dy, x, parameters), want = gradients(expected, dy.to(expected.device()), x, parameters);
  for (size_t k = 0; k < want.size(); ++k) {
    if (!want[k].defined()) continue;
    ASSERT_TRUE(got[k].defined());
    EXPECT_LT(difference(got[k], want[k]), kTolerance) << "gradient " << k;
  }
}

// Rows of 9 and 6 tokens, the second padded with what must not matter; the formula sees each row alone.
void expect_rows_follow_the_formula(const ContextPoolOptions& options) {
  SCOPED_TRACE(words(options));
  torch::manual_seed(1);
  auto pool = ContextPool1d(options);
  scatter(pool);
  auto x = random({2, 9, 4});
  x[1].slice(0, 6) = std::numeric_limits<double>::quiet_NaN();
  x.requires_grad_();
  const auto parameters = parameters_of(*pool);
  const auto y = pool(x, there(torch::tensor({9, 6})));
  const auto second = torch::constant_pad_nd(reference_row(options, parameters, x[1].slice(0, 0, 6)), {0, 0, 0, 3});
  expect_same(y, torch::stack({reference_row(options, parameters, x[0]), second}), x, parameters);
}

void expect_maps_follow_the_formula(const ContextPool2dOptions& options) {
  SCOPED_TRACE(words(options));
  torch::manual_seed(2);
  auto pool = ContextPool2d(options);
  scatter(pool);
  auto x = random({2, 4, 4, 5});
  auto mask = there(torch::ones({2, 4, 5}, torch::kBool));
  mask[1].slice(0, 3) = false;
  mask[1].slice(1, 3) = false;
  x = x.masked_fill(mask.logical_not().unsqueeze(1), std::numeric_limits<double>::infinity()).requires_grad_();
  const auto parameters = parameters_of(*pool);
  const auto y = pool(x, mask);
  const auto second = reference_map(options, parameters, x[1].slice(1, 0, 3).slice(2, 0, 3));
  const auto expected =
      torch::stack({reference_map(options, parameters, x[0]),
                    torch::constant_pad_nd(second, {0, y.size(3) - second.size(2), 0, y.size(2) - second.size(1)})});
  expect_same(y, expected, x, parameters);
}

void expect_locality_follows_the_formula(const std::string& locality) {
  for (const bool causal : {false, true}) {
    for (const auto& options : every_option<ContextPoolOptions>(4, locality, causal)) {
      expect_rows_follow_the_formula(options);
    }
  }
  for (auto options : every_option<ContextPool2dOptions>(4, locality, /*causal=*/false)) {
    expect_maps_follow_the_formula(options);
    options.stride = {2, 3};
    expect_maps_follow_the_formula(options);
  }
}

TEST(ContextPool, GaussianFollowsTheFormula) { expect_locality_follows_the_formula("gaussian"); }
TEST(ContextPool, NoLocalityFollowsTheFormula) { expect_locality_follows_the_formula("none"); }
TEST(ContextPool, FixedWindowFollowsTheFormula) { expect_locality_follows_the_formula("fixed_window"); }
TEST(ContextPool, AdaptiveWindowFollowsTheFormula) { expect_locality_follows_the_formula("adaptive_window"); }
TEST(ContextPool, RandomSparseFollowsTheFormula) { expect_locality_follows_the_formula("random_sparse"); }

// Rows longer than a chunk of windows, of a length that chunks do not divide.
TEST(ContextPool, WindowsOfLongRowsFollowTheFormula) {
  for (const auto* locality : {"fixed_window", "adaptive_window"}) {
    for (const bool causal : {false, true}) {
      ContextPoolOptions options{.features = 2, .locality = locality, .hidden = 4, .causal = causal};
      options.reference_length = causal ? 30 : 0;
      SCOPED_TRACE(words(options));
      auto pool = ContextPool1d(options);
      scatter(pool);
      const auto x = random({1, 77, 2}).requires_grad_();
      const auto parameters = parameters_of(*pool);
      expect_same(pool(x), reference_row(options, parameters, x[0]).unsqueeze(0), x, parameters);
    }
  }
}

int64_t count(const torch::nn::Module& module) {
  int64_t total = 0;
  for (const auto& parameter : module.parameters()) total += parameter.numel();
  return total;
}

TEST(ContextPool, HasThePapersParameterCounts) {
  EXPECT_EQ(count(*ContextPool1d(512)), 98754);
  EXPECT_EQ(count(*ContextPool1d(768)), 147906);
  ContextPoolOptions options{.features = 512, .groups = 8};
  EXPECT_EQ(count(*ContextPool1d(options)), 98754 + 7 * 2 * (64 * 3 + 1)) << "groups add to the last layer only";
  EXPECT_EQ(count(*ContextPool1d(ContextPoolOptions{.features = 512, .predictor = "mlp"})), 512 * 64 + 64 + 130);
  EXPECT_EQ(count(*ContextPool1d(ContextPoolOptions{.features = 512, .weights = "nonlocal"})),
            2 * 512 * 512 + 98754 - (64 * 3 + 1));
  EXPECT_EQ(count(*ContextPool2d(ContextPool2dOptions(64))), 24 * 64 * 9 + 24 + 2 * 24 * 9 + 2);
}

TEST(ContextPool, ParametersHaveTheNamesOfPython) {
  const auto names = [](const ContextPoolOptions& options) {
    std::vector<std::string> all;
    for (const auto& item : ContextPool1d(options)->named_parameters()) all.push_back(item.key());
    return all;
  };
  EXPECT_EQ(names({.features = 4}), (std::vector<std::string>{"predictor.conv1.weight", "predictor.conv1.bias",
                                                              "predictor.conv2.weight", "predictor.conv2.bias"}));
  EXPECT_EQ(names({.features = 4, .predictor = "mlp"}),
            (std::vector<std::string>{"predictor.fc1.weight", "predictor.fc1.bias", "predictor.fc2.weight",
                                      "predictor.fc2.bias"}));
  EXPECT_EQ(names({.features = 4, .weights = "nonlocal", .locality = "none"}),
            (std::vector<std::string>{"theta.weight", "phi.weight"}));
}

TEST(ContextPool, StartsAtTheInitialSigmaAtAnyLength) {
  for (const int64_t length : {1, 10, 32, 4096}) {
    for (const int64_t reference_length : {int64_t{0}, length}) {
      auto pool = on_device(ContextPool1d(ContextPoolOptions{.features = 6, .reference_length = reference_length}));
      const auto sigma = [&](const contextpool::nn::Padding& padding) {
        return pool->forward_with_windows(random({2, length, 6}, torch::kFloat), padding).second.sigma;
      };
      EXPECT_LT(difference(sigma({}), torch::full({2, length}, 4.0)), 1e-5);
      EXPECT_LT(difference(sigma(there(torch::full({2}, (length + 1) / 2, torch::kLong))).slice(1, 0, (length + 1) / 2),
                           torch::full({2, (length + 1) / 2}, 4.0)),
                1e-5);
      // A model that draws all parameters itself and knows nothing of sizes.
      for (auto& item : pool->named_parameters()) {
        item.key().ends_with("bias") ? item.value().data().zero_() : item.value().data().normal_(0, 0.02);
      }
      EXPECT_LT(difference(sigma({}), torch::full({2, length}, 4.0)), 0.5);
    }
  }
  for (const int64_t side : {7, 14, 56}) {
    auto pool = on_device(ContextPool2d(ContextPool2dOptions(6)));
    const auto sigma = pool->forward_with_windows(random({1, 6, side, side}, torch::kFloat)).second.sigma;
    EXPECT_LT(difference(sigma, torch::full({1, side, side}, 0.5)), 1e-6);
  }
}

TEST(ContextPool, SizesStayWithinTheirRangeOfTheLearntOne) {
  auto pool = on_device(ContextPool1d(ContextPoolOptions{.features = 6, .size_range = 0.3}));
  for (auto& parameter : pool->parameters()) parameter.data().normal_();
  const auto x = random({2, 5000, 6}, torch::kFloat);
  const auto bias = pool->named_parameters()["predictor.conv2.bias"][1].item<double>();
  const auto logit = [](const torch::Tensor& share) { return torch::log(share / (1 - share)); };
  const auto sigma = pool->forward_with_windows(x).second.sigma.to(torch::kDouble);
  const auto found = logit((sigma - 1) / 499) - bias - std::log(3.0 / 496);
  EXPECT_NEAR(found.max().item<double>(), 0.3, 1e-3);
  EXPECT_NEAR(found.min().item<double>(), -0.3, 1e-3);
}

TEST(ContextPool, ThePapersSizesStartAtTheInitialSigma) {
  for (const auto* size_norm : {"sigmoid", "channels"}) {
    for (const auto& [length, expected] : {std::pair{2048, 4.0}, {100, 4.0}, {64, 3.2}, {25, 1.25}, {1, 0.05}}) {
      for (const bool own : {false, true}) {
        ContextPoolOptions options{.features = 6, .size_norm = size_norm, .size_range = 0};
        options.reference_length = own ? 0 : length;
        options.usual_length = own ? length : 1024;
        auto pool = on_device(ContextPool1d(options));
        EXPECT_LT(difference(pool->forward_with_windows(random({2, length, 6}, torch::kFloat)).second.sigma,
                             torch::full({2, length}, expected)),
                  1e-5);
        for (auto& parameter : pool->parameters()) parameter.data().normal_();
        pool->reset_sizes();
        EXPECT_LT(difference(pool->forward_with_windows(random({2, length, 6}, torch::kFloat)).second.sigma,
                             torch::full({2, length}, expected)),
                  1e-5);
      }
    }
    for (const auto& [side, expected] : {std::pair{14, 0.35}, {7, 0.175}, {40, 0.5}}) {
      ContextPool2dOptions options(6);
      options.size_norm = size_norm;
      options.size_range = 0;
      options.usual_length = side;
      options.stride = {2, 1};
      auto pool = on_device(ContextPool2d(options));
      const auto sigma = pool->forward_with_windows(random({1, 6, side, side}, torch::kFloat)).second.sigma;
      EXPECT_LT(difference(sigma, torch::full({1, (side + 1) / 2, side}, expected)), 1e-6);
    }
  }
}

TEST(ContextPool, SizesBySoftmaxStartAlikeAndSumToOne) {
  auto pool = on_device(ContextPool1d(ContextPoolOptions{.features = 6, .size_norm = "softmax"}));
  const auto sigma =
      pool->forward_with_windows(random({2, 25, 6}, torch::kFloat), there(torch::tensor({25, 10}))).second.sigma;
  EXPECT_LT(difference(sigma[0], torch::full({25}, 0.1)), 1e-6);
  EXPECT_LT(difference(sigma[1].slice(0, 0, 10), torch::full({10}, 0.1)), 1e-6);
  EXPECT_EQ(sigma[1].slice(0, 10).abs().max().item<float>(), 0);
}

TEST(ContextPool, RandomPlacesAreUniform) {
  // Where 1000 targets look, in 8 equal parts of the row: 8 places each, chi-square with 7 degrees of freedom.
  ContextPoolOptions options{.features = 1000, .weights = "uniform", .locality = "random_sparse"};
  const auto x = there(torch::eye(1000)).unsqueeze(0);
  const auto looked = (on_device(ContextPool1d(options))(x)[0] > 0).to(torch::kDouble).fill_diagonal_(0);
  const auto parts = looked.sum(0).view({8, 125}).sum(1);
  const auto expected = parts.mean();
  EXPECT_NEAR(expected.item<double>(), 995, 5) << "a place drawn twice counts once";
  EXPECT_LT(((parts - expected).square() / expected).sum().item<double>(), 24.3) << "p = 0.001";
  options.layer = 1;
  const auto other = (on_device(ContextPool1d(options))(x)[0] > 0).to(torch::kDouble).fill_diagonal_(0);
  EXPECT_LT((looked * other).sum().item<double>(), 120) << "another layer looks elsewhere";
}

void expect_refused(const ContextPoolOptions& options, const std::string& reason) {
  try {
    ContextPool1d pool(options);
    ADD_FAILURE() << "accepted: " << words(options);
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("ContextPool1d: " + reason), std::string::npos) << error.what();
  }
}

TEST(ContextPool, RefusesWhatCannotWork) {
  expect_refused({.features = 8, .causal = true}, "causal needs reference_length");
  expect_refused({.features = 8, .size_norm = "softmax", .reference_length = 9, .causal = true},
                 "size_norm \"softmax\" divides by a sum over the whole row");
  expect_refused({.features = 8, .weights = "nonlocal", .groups = 2}, "weights \"nonlocal\" compare whole tokens");
  expect_refused({.features = 8, .predictor = "mlp", .weights = "nonlocal"}, "weights \"nonlocal\" are another name");
  expect_refused({.features = 8, .predictor = "attention", .weights = "uniform"}, "predictor \"attention\" gives");
  expect_refused({.features = 8, .weights = "uniform", .size_norm = "channels"}, "size_norm \"channels\" is a softmax");
  expect_refused({.features = 8, .groups = 3}, "groups must divide the 8 features");
  expect_refused({.features = 8, .kernel = 4}, "kernel must be odd");
  expect_refused({.features = 0}, "features must be positive");
  expect_refused({.features = 8, .ratio = 0}, "ratio must be positive");
  expect_refused({.features = 8, .initial_sigma = INFINITY}, "initial_sigma must be finite");
  expect_refused({.features = 8, .locality = "gausian"},
                 "locality is \"gausian\", expected one of gaussian, none, fixed_window, adaptive_window, "
                 "random_sparse; did you mean \"gaussian\"?");
  ContextPool2dOptions map(8);
  map.causal = true;
  map.reference_length = 14;
  EXPECT_THROW(ContextPool2d{map}, c10::ValueError);
}

TEST(ContextPool, RefusesInputsOfTheWrongShape) {
  auto pool = on_device(ContextPool1d(8));
  const auto ones = [](torch::IntArrayRef sizes, torch::ScalarType type = torch::kFloat) {
    return there(torch::ones(sizes, type));
  };
  EXPECT_THROW(pool(ones({2, 5, 7})), c10::ValueError);
  EXPECT_THROW(pool(ones({5, 8})), c10::ValueError);
  EXPECT_THROW(pool(ones({2, 5, 8}), ones({3}, torch::kLong)), c10::ValueError);
  EXPECT_THROW(pool(ones({2, 5, 8}), ones({2, 5})), c10::ValueError);
  EXPECT_THROW(pool(ones({2, 5, 8}), ones({2, 4}, torch::kBool)), c10::ValueError);
  nn::ContextPoolCache cache;
  EXPECT_THROW(pool->step(ones({2, 1, 8}), cache), c10::ValueError) << "not causal";
  EXPECT_THROW(ContextPool2d(ContextPool2dOptions(8))(torch::ones({2, 7, 5, 5})), c10::ValueError);
}

TEST(ContextPool, TakesEmptyBatches) {
  auto row = ContextPool1d(8);
  auto map = ContextPool2d(ContextPool2dOptions(8));
  row->to(device());
  map->to(device());
  EXPECT_EQ(row(there(torch::ones({0, 5, 8}))).sizes(), (std::vector<int64_t>{0, 5, 8}));
  EXPECT_EQ(row(there(torch::ones({2, 0, 8}))).sizes(), (std::vector<int64_t>{2, 0, 8}));
  EXPECT_EQ(map(there(torch::ones({0, 8, 3, 3}))).sizes(), (std::vector<int64_t>{0, 8, 3, 3}));
}

TEST(ContextPool, AClonedModuleGivesTheSameOutputs) {
  auto pool = ContextPool1d(ContextPoolOptions{.features = 8, .weights = "nonlocal"});
  scatter(pool);
  const auto copy = std::dynamic_pointer_cast<nn::ContextPool1dImpl>(pool->clone());
  const auto x = random({2, 9, 8});
  EXPECT_TRUE(torch::equal(pool(x), copy->forward(x)));
  for (auto& parameter : pool->parameters()) parameter.data().zero_();
  EXPECT_FALSE(torch::equal(pool(x), copy->forward(x)));
}

TEST(ContextPool, StandsInASequential) {
  torch::nn::Sequential model(torch::nn::Linear(8, 8), ContextPool1d(8));
  model->to(device());
  EXPECT_EQ(model->forward(there(torch::ones({2, 5, 8}))).sizes(), (std::vector<int64_t>{2, 5, 8}));
}

TEST(ContextPool, HalfPrecisionStaysCloseAndKeepsSizesInFloat32) {
  for (const auto* locality : {"gaussian", "none", "fixed_window", "adaptive_window", "random_sparse"}) {
    SCOPED_TRACE(locality);
    auto pool = on_device(ContextPool1d(ContextPoolOptions{.features = 16, .locality = locality, .usual_length = 40}));
    const auto x = random({2, 40, 16}, torch::kFloat);
    const auto expected = pool(x);
    pool->to(torch::kBFloat16);
    const auto y = pool(x.to(torch::kBFloat16));
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    EXPECT_LT(difference(y, expected), 0.05);
    EXPECT_EQ(pool->forward_with_windows(x.to(torch::kBFloat16)).second.log_weight.scalar_type(), torch::kFloat);
  }
}

TEST(ContextPool, UnderAutocastSizesAndOutputsStayFloat32) {
  for (const auto* weights : {"softmax", "unnormalized", "nonlocal"}) {
    SCOPED_TRACE(weights);
    auto pool = on_device(ContextPool1d(ContextPoolOptions{.features = 16, .weights = weights, .usual_length = 40}));
    const auto x = random({2, 40, 16}, torch::kFloat);
    const auto expected = pool(x);
    const BFloat16 autocast;
    const auto y = pool(x);
    EXPECT_EQ(y.scalar_type(), torch::kFloat);
    EXPECT_EQ(pool->forward_with_windows(x).second.sigma.scalar_type(), torch::kFloat);
    EXPECT_LT(difference(y, expected), 0.05);
    EXPECT_FALSE(torch::equal(y, expected)) << "the first layer is in bfloat16";
  }
}

}  // namespace
}  // namespace contextpool::testing
