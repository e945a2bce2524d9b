// train::AdamW and the average of the weights, against the formula in float64 and PyTorch's own optimizer.
#include "contextpool/train/adamw.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "../device.h"
#include "contextpool/train/average.h"

namespace contextpool::testing {
namespace {

constexpr train::AdamWOptions kOptions{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};
constexpr double kLr = 0.03;
constexpr int kSteps = 7;

torch::Tensor leaf(const torch::Tensor& t) { return t.clone().set_requires_grad(true); }

TEST(AdamW, FollowsTheFormulaAndDecaysMatricesOnly) {
  torch::manual_seed(1);
  const std::vector<torch::Tensor> start = {there(torch::randn({5, 3})), there(torch::randn({4})),
                                            there(torch::randn({2, 3, 3}))};
  std::vector<std::vector<torch::Tensor>> gradients(kSteps);
  for (auto& step : gradients) {
    for (const auto& p : start) step.push_back(torch::randn_like(p));
  }
  io::NamedTensors parameters;
  for (std::size_t i = 0; i < start.size(); ++i) parameters.emplace_back(std::to_string(i), leaf(start[i]));
  train::AdamW adamw(parameters, kOptions);
  for (const auto& step : gradients) {
    for (std::size_t i = 0; i < step.size(); ++i) parameters[i].second.mutable_grad() = step[i].clone();
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
    EXPECT_TRUE(torch::allclose(parameters[i].second.to(torch::kDouble), p, 1e-5, 1e-6)) << i;
  }
}

TEST(AdamW, AgreesWithPyTorchsOwn) {
  torch::manual_seed(2);
  const auto ours = leaf(there(torch::randn({6, 6}))), theirs = leaf(ours.detach());
  train::AdamW adamw({{"p", ours}}, kOptions);
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
  train::AdamW adamw({{"used", used}, {"unused", unused}}, kOptions);
  used.mutable_grad() = there(torch::ones({2, 2}));
  adamw.step(kLr);
  EXPECT_TRUE(unused.equal(there(torch::ones({2, 2}))));
  EXPECT_FALSE(used.equal(there(torch::ones({2, 2}))));
}

TEST(AdamW, ItsStateIsAllThereIs) {
  torch::manual_seed(3);
  const auto a = leaf(there(torch::randn({3, 3})));
  train::AdamW first({{"p", a}}, kOptions);
  a.mutable_grad() = there(torch::randn({3, 3}));
  first.step(kLr);
  const auto b = leaf(a.detach());
  train::AdamW second({{"p", b}}, kOptions);
  io::load_into(second.state(), first.state(), "test");
  a.mutable_grad() = there(torch::randn({3, 3}));
  b.mutable_grad() = a.grad().clone();
  first.step(kLr);
  second.step(kLr);
  EXPECT_TRUE(a.equal(b));
}

TEST(Gradients, NormAndScaleAreOfAllTogether) {
  const auto a = leaf(there(torch::zeros({2}))), b = leaf(there(torch::zeros({1})));
  a.mutable_grad() = there(torch::tensor({2.0F, 3.0F}));
  b.mutable_grad() = there(torch::tensor({6.0F}));
  const io::NamedTensors parameters = {{"a", a}, {"b", b}};
  EXPECT_FLOAT_EQ(train::gradient_norm(parameters).item<float>(), 7);
  train::scale_gradients(parameters, 0.5);
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
    average.update(t);
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

}  // namespace
}  // namespace contextpool::testing
