// The optimizers and the average of the weights, against their formulas in float64 and PyTorch's own optimizers.
#include "contextpool/train/adamw.h"
#include "contextpool/train/sgd.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "../device.h"
#include "contextpool/train/average.h"

namespace contextpool::testing {
namespace {

const train::OptimizerOptions kOptions{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};
constexpr double kLr = 0.03;
constexpr int kSteps = 7;

torch::Tensor leaf(const torch::Tensor& t) { return t.clone().set_requires_grad(true); }

TEST(AdamW, FollowsTheFormulaAndDecaysWhatDecays) {
  torch::manual_seed(1);
  const std::vector<torch::Tensor> start = {there(torch::randn({5, 3})), there(torch::randn({4})),
                                            there(torch::randn({2, 3, 3}))};
  std::vector<std::vector<torch::Tensor>> gradients(kSteps);
  for (auto& step : gradients) {
    for (const auto& p : start) step.push_back(torch::randn_like(p));
  }
  std::vector<train::Trainable> parameters;
  for (std::size_t i = 0; i < start.size(); ++i)
    parameters.push_back({std::to_string(i), leaf(start[i]), start[i].dim() >= 2});
  train::AdamW adamw(parameters, kOptions);
  for (const auto& step : gradients) {
    for (std::size_t i = 0; i < step.size(); ++i) parameters[i].parameter.mutable_grad() = step[i].clone();
    adamw.step(kLr);
  }
  for (std::size_t i = 0; i < start.size(); ++i) {
    auto p = start[i].to(torch::kDouble), m = torch::zeros_like(p), v = torch::zeros_like(p);
    const double decay = start[i].dim() >= 2 ? kOptions.weight_decay : 0;
    for (int t = 1; t <= kSteps; ++t) {
      const auto g = gradients[t - 1][i].to(torch::kDouble);
      m = kOptions.beta1 * m + (1 - kOptions.beta1) * g;
      v = kOptions.beta2 * v + (1 - kOptions.beta2) * g * g;
      const auto m_hat = m / (1 - std::pow(kOptions.beta1, t)), v_hat = v / (1 - std::pow(kOptions.beta2, t));
      p = p - kLr * decay * p - kLr * m_hat / (v_hat.sqrt() + kOptions.eps);
    }
    EXPECT_TRUE(torch::allclose(parameters[i].parameter.to(torch::kDouble), p, 1e-5, 1e-6)) << i;
  }
}

TEST(AdamW, AgreesWithPyTorchsOwn) {
  torch::manual_seed(2);
  const auto ours = leaf(there(torch::randn({6, 6}))), theirs = leaf(ours.detach());
  train::AdamW adamw({{"p", ours, true}}, kOptions);
  torch::optim::AdamW reference({theirs}, torch::optim::AdamWOptions(kLr)
                                              .betas({kOptions.beta1, kOptions.beta2})
                                              .eps(kOptions.eps)
                                              .weight_decay(kOptions.weight_decay));
  for (int t = 0; t < kSteps; ++t) {
    ours.mutable_grad() = there(torch::randn({6, 6}));
    theirs.mutable_grad() = ours.grad().clone();
    adamw.step(kLr);
    reference.step();
  }
  EXPECT_TRUE(torch::allclose(ours, theirs, 1e-5, 1e-6));
}

TEST(AdamW, AParameterWithoutGradientStays) {
  const auto used = leaf(there(torch::ones({2, 2}))), unused = leaf(there(torch::ones({2, 2})));
  train::AdamW adamw({{"used", used, true}, {"unused", unused, true}}, kOptions);
  used.mutable_grad() = there(torch::ones({2, 2}));
  adamw.step(kLr);
  EXPECT_TRUE(unused.equal(there(torch::ones({2, 2}))));
  EXPECT_FALSE(used.equal(there(torch::ones({2, 2}))));
}

TEST(AdamW, ItsStateIsAllThereIs) {
  torch::manual_seed(3);
  const auto a = leaf(there(torch::randn({3, 3})));
  train::AdamW first({{"p", a, true}}, kOptions);
  a.mutable_grad() = there(torch::randn({3, 3}));
  first.step(kLr);
  const auto b = leaf(a.detach());
  train::AdamW second({{"p", b, true}}, kOptions);
  io::load_into(second.state(), first.state(), "test");
  a.mutable_grad() = there(torch::randn({3, 3}));
  b.mutable_grad() = a.grad().clone();
  first.step(kLr);
  second.step(kLr);
  EXPECT_TRUE(a.equal(b));
}

class SgdForms : public ::testing::TestWithParam<std::tuple<double, bool>> {};

TEST_P(SgdForms, AgreesWithPyTorchsOwnAndDecaysWhatDecays) {
  torch::manual_seed(4);
  const auto [momentum, nesterov] = GetParam();
  const train::OptimizerOptions options{.kind = "sgd", .momentum = momentum, .nesterov = nesterov, .weight_decay = 0.1};
  const auto ours = leaf(there(torch::randn({6, 6}))), theirs = leaf(ours.detach());
  const auto bias = leaf(there(torch::randn({6}))), their_bias = leaf(bias.detach());
  const auto sgd = train::make_optimizer({{"p", ours, true}, {"b", bias, false}}, options);
  const auto torchs = torch::optim::SGDOptions(kLr).momentum(momentum).nesterov(nesterov);
  torch::optim::SGD decaying({theirs}, torch::optim::SGDOptions(torchs).weight_decay(0.1)), plain({their_bias}, torchs);
  for (int t = 0; t < kSteps; ++t) {
    ours.mutable_grad() = there(torch::randn({6, 6}));
    bias.mutable_grad() = there(torch::randn({6}));
    theirs.mutable_grad() = ours.grad().clone();
    their_bias.mutable_grad() = bias.grad().clone();
    const auto before = ours.grad().clone();
    sgd->step(kLr);
    EXPECT_TRUE(ours.grad().equal(before)) << "gradients are left as they are";
    decaying.step();
    plain.step();
  }
  EXPECT_TRUE(torch::allclose(ours, theirs, 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(bias, their_bias, 1e-5, 1e-6));
  EXPECT_EQ(sgd->state().size(), momentum > 0 ? 2U : 0U);
}

INSTANTIATE_TEST_SUITE_P(Sgd, SgdForms,
                         ::testing::Values(std::tuple{0.0, false}, std::tuple{0.9, false}, std::tuple{0.9, true}));

TEST(Optimizer, RefusesWhatCannotBe) {
  const auto p = leaf(torch::zeros({2}));
  for (const auto& options : {train::OptimizerOptions{.kind = "adagrad"}, train::OptimizerOptions{.beta1 = 1},
                              train::OptimizerOptions{.kind = "sgd", .momentum = 0, .nesterov = true}}) {
    EXPECT_ANY_THROW(train::make_optimizer({{"p", p, true}}, options));
  }
}

class Skipping : public ::testing::TestWithParam<train::OptimizerOptions> {};

TEST_P(Skipping, LeavesEveryBitWhateverTheGradientHolds) {
  torch::manual_seed(6);
  const auto start = there(torch::randn({5, 4}));
  const auto skipping = leaf(start), plain = leaf(start);
  const auto a = train::make_optimizer({{"p", skipping, true}}, GetParam());
  const auto b = train::make_optimizer({{"p", plain, true}}, GetParam());
  const auto yes = there(torch::ones({})), no = there(torch::zeros({}));
  const auto lr = torch::scalar_tensor(kLr, torch::kDouble);
  for (int t = 0; t < kSteps; ++t) {
    const auto gradient = there(torch::randn({5, 4}));
    skipping.mutable_grad() = torch::full_like(gradient, t % 2 == 0 ? NAN : INFINITY);
    a->step_unless(yes, lr);
    EXPECT_TRUE(skipping.equal(plain));
    skipping.mutable_grad() = gradient.clone();
    plain.mutable_grad() = gradient.clone();
    a->step_unless(no, lr);
    b->step(kLr);
    EXPECT_TRUE(skipping.equal(plain));
    const auto state = a->state(), expected = b->state();
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(state[i].second.equal(expected[i].second));
  }
  EXPECT_FALSE(plain.equal(start));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Skipping,
                         ::testing::Values(kOptions, train::OptimizerOptions{.kind = "sgd", .weight_decay = 0.1},
                                           train::OptimizerOptions{.kind = "sgd", .momentum = 0, .nesterov = false}));

TEST(Gradients, NormAndScaleAreOfAllTogether) {
  const auto a = leaf(there(torch::zeros({2}))), b = leaf(there(torch::zeros({1})));
  a.mutable_grad() = there(torch::tensor({2.0F, 3.0F}));
  b.mutable_grad() = there(torch::tensor({6.0F}));
  const std::vector<train::Trainable> parameters = {{"a", a}, {"b", b}};
  EXPECT_FLOAT_EQ(train::gradient_norm(parameters).item<float>(), 7);
  train::scale_gradients(parameters, there(torch::tensor(0.5)));
  EXPECT_FLOAT_EQ(b.grad().item<float>(), 3);
  EXPECT_FLOAT_EQ(train::gradient_norm(parameters).item<float>(), 3.5);
}

TEST(Average, FollowsTheFormulaAndIsPutInPlaceAndTakenAway) {
  const auto p = leaf(there(torch::zeros({1})));
  const io::NamedTensors parameters = {{"p", p}};
  train::Average average(parameters, 0.5);
  double expected = 0;
  for (int t = 0; t < 20; ++t) {
    const torch::NoGradGuard no_grad;
    p.fill_(t);
    average.update();
    const double d = std::min(0.5, (1.0 + t) / (10.0 + t));
    expected = d * expected + (1 - d) * t;
  }
  EXPECT_NEAR(average.tensors()[0].second.item<double>(), expected, 1e-5);
  {
    const train::AverageInPlace in_place(average);
    EXPECT_NEAR(p.item<double>(), expected, 1e-5);
  }
  EXPECT_EQ(p.item<double>(), 19);
  EXPECT_TRUE(p.requires_grad());
  EXPECT_ANY_THROW(train::Average(parameters, 1));
}

TEST(Average, LeavesOutWhatIsSkippedAndDoesNotCountIt) {
  const auto p = leaf(there(torch::ones({3})));
  const auto count = there(torch::zeros({}, torch::kLong));
  train::Average skipping({{"p", p}, {"count", count}}, 0.9), plain({{"p", p}}, 0.9);
  for (int t = 0; t < 20; ++t) {
    const torch::NoGradGuard no_grad;
    p.fill_(t * 0.7);
    count.fill_(2 * t);
    plain.update();
    skipping.update(there(torch::zeros({})));
    p.fill_(1e9);
    count.fill_(2 * t + 1);
    skipping.update(there(torch::ones({})));
    EXPECT_TRUE(skipping.tensors()[0].second.equal(plain.tensors()[0].second)) << t;
    EXPECT_EQ(skipping.tensors()[1].second.item<std::int64_t>(), 2 * t);
  }
}

TEST(Average, KeepsTheBuffersOfTheModelToo) {
  torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(3));
  norm->to(device());
  train::Average average(io::named_tensors(*norm), 0.5);
  torch::manual_seed(5);
  norm(there(torch::randn({8, 3}) * 4 + 7));
  average.begin_at(100);
  average.update();
  const auto& kept = average.tensors();
  ASSERT_EQ(kept.size(), io::named_tensors(*norm).size());
  for (const auto& [name, tensor] : kept) {
    if (name == "running_mean") {
      EXPECT_TRUE(torch::allclose(tensor, norm->running_mean / 2));
    } else if (name == "num_batches_tracked") {
      EXPECT_EQ(tensor.item<std::int64_t>(), 1);
    }
  }
  const auto mean = norm->running_mean.clone();
  {
    const train::AverageInPlace in_place(average);
    EXPECT_TRUE(torch::allclose(norm->running_mean, mean / 2));
  }
  EXPECT_TRUE(norm->running_mean.equal(mean));
}

}  // namespace
}  // namespace contextpool::testing
