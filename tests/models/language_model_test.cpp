// The language model end to end: no bit of the future in any logit, steps equal to the whole, what it is made of, and
// its options as JSON.
#include "contextpool/models/language_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "../nn/steps.h"
#include "cases.h"

namespace contextpool::testing {
namespace {

using models::LanguageModel;
using models::LanguageModelCache;
using models::LanguageModelOptions;

class EveryModel : public ::testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override { torch::manual_seed(7); }
};

TEST_P(EveryModel, PredictsWithoutABitOfTheFuture) {
  auto model = random_model(GetParam().options);
  constexpr int64_t kLength = 67;
  const auto tokens = random_tokens(2, kLength);
  const auto logits = model(tokens);
  for (const int64_t t : {1, 2, 30, 65, 66}) {
    auto changed = tokens.clone();
    changed.select(1, t) = (changed.select(1, t) + 11) % 30;  // one symbol
    const auto other = model(changed);
    EXPECT_TRUE(torch::equal(other.slice(1, 0, t), logits.slice(1, 0, t))) << "symbol " << t;
    EXPECT_FALSE(torch::equal(other.select(1, t), logits.select(1, t)));
    changed.slice(1, t) = random_tokens(2, kLength - t);  // everything from there on
    EXPECT_TRUE(torch::equal(model(changed).slice(1, 0, t), logits.slice(1, 0, t))) << "from " << t;
  }
}

// The gradient that the predictions before t send to the parameters does not change with the symbols after.
TEST_P(EveryModel, LearnsFromThePastWithoutABitOfTheFuture) {
  auto model = random_model(GetParam().options);
  constexpr int64_t kLength = 40, kT = 23;
  const auto tokens = random_tokens(1, kLength);
  auto changed = tokens.clone();
  changed.slice(1, kT) = random_tokens(1, kLength - kT);
  const auto embedding = [&](const torch::Tensor& row) {
    model->zero_grad();
    const auto logits = model(row).slice(1, 0, kT);
    torch::nn::functional::cross_entropy(logits[0], tokens[0].slice(0, 1, kT + 1)).backward();
    return model->named_parameters()["token.weight"].grad().clone();
  };
  const auto before = embedding(tokens), after = embedding(changed);
  if (on_cpu()) {
    EXPECT_TRUE(torch::equal(before, after));
  } else {  // PyTorch's gradients may be added up in any order there
    EXPECT_LT(difference(before, after), 1e-5 * before.abs().max().item<double>());
  }
}

TEST_P(EveryModel, StepsEqualTheWhole) {
  for (const auto type : {torch::kFloat64, torch::kFloat32}) {
    auto model = random_model(GetParam().options, type);
    const torch::NoGradGuard no_grad;
    const auto tokens = random_tokens(2, 90);
    const auto whole = model(tokens);
    LanguageModelCache cache;
    for (const int64_t count : {1, 1, 10, 1, 60, 1, 1, 15}) {
      const auto first = cache.length();
      const auto logits = model->step(tokens.narrow(1, first, count), cache);
      EXPECT_LT(difference(logits, whole.narrow(1, first, count)), type == torch::kFloat64 ? 1e-12 : 5e-5);
    }
    EXPECT_EQ(cache.length(), 90);
  }
}

TEST_P(EveryModel, DecodesLeftPaddedBatches) {
  auto model = random_model(GetParam().options, torch::kFloat64);
  const auto forward = [&](const torch::Tensor& tokens, const nn::Padding& padding) { return model(tokens, padding); };
  const auto step = [&](const torch::Tensor& tokens, LanguageModelCache& cache, const nn::Padding& padding) {
    return model->step(tokens, cache, padding);
  };
  // Windows that double along the row count its positions, padded ones too.
  const bool alone = GetParam().options.attention != "window";
  expect_steps<LanguageModelCache>({forward, step}, random_tokens(4, 30), model->parameters(), alone);
}

TEST_P(EveryModel, InBFloat16StaysClose) {
  auto model = random_model(GetParam().options);
  const auto tokens = random_tokens(2, 60);
  const auto logits = model(tokens);
  const BFloat16 autocast;
  const auto rough = model(tokens);
  EXPECT_LT(((rough - logits).norm() / logits.norm()).item<double>(), 0.05);
  rough.logsumexp(-1).sum().backward();
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
  }
}

TEST_P(EveryModel, DoesNotDependOnTheRestOfTheBatch) {
  auto model = random_model(GetParam().options, torch::kFloat64);
  const auto tokens = random_tokens(3, 33);
  const auto logits = model(tokens);
  const auto order = there(torch::tensor({2, 0, 1}));
  EXPECT_LT(difference(model(tokens.index_select(0, order)), logits.index_select(0, order)), 1e-11);
  EXPECT_LT(difference(model(tokens.narrow(0, 1, 1)), logits.narrow(0, 1, 1)), 1e-11);
  EXPECT_LT(difference(model(tokens.slice(1, 0, 20)), logits.slice(1, 0, 20)), 1e-11);  // a row cut short
}

TEST_P(EveryModel, SurvivesJson) {
  const auto& options = GetParam().options;
  const auto json = models::to_json(options);
  const auto back = models::from_json(json);
  EXPECT_EQ(models::to_json(back), json);
  torch::manual_seed(1);
  LanguageModel model(options);
  torch::manual_seed(1);
  LanguageModel copy(back);
  model->to(device());
  copy->to(device());
  const auto tokens = random_tokens(1, 12);
  EXPECT_TRUE(torch::equal(model(tokens), copy(tokens)));
}

INSTANTIATE_TEST_SUITE_P(All, EveryModel, ::testing::ValuesIn(model_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(LanguageModel, StartsAsItSays) {
  auto options = small_options("context_pool");
  options.features = 256;
  options.heads = 4;
  options.positions = "learned";
  torch::manual_seed(3);
  LanguageModel model(options);
  for (const auto& item : model->named_parameters()) {
    SCOPED_TRACE(item.key());
    if (item.key().find("context_pool.predictor.conv2") != std::string::npos) continue;  // the sizes: below
    const auto& p = item.value();
    if (p.dim() > 1) {
      EXPECT_NEAR(p.std().item<double>(), 0.02, 0.002);
      EXPECT_NEAR(p.mean().item<double>(), 0, 0.002);
    } else {
      EXPECT_TRUE((p == (item.key().ends_with("bias") ? 0 : 1)).all().item<bool>());
    }
  }
  const auto windows = model->blocks()[0]->context_pool()->forward_with_windows(torch::randn({2, 50, 256})).second;
  EXPECT_LT((windows.sigma - 4.0).abs().max().item<double>(), 1e-5);
}

TEST(LanguageModel, CallsItsParametersAsPythonDoes) {
  auto options = small_options("depthwise");
  options.positions = "learned";
  options.layers = 1;
  EXPECT_EQ(LanguageModel(options)->named_parameters().keys(),
            (std::vector<std::string>{"token.weight",
                                      "position.weight",
                                      "blocks.0.norm1.weight",
                                      "blocks.0.norm1.bias",
                                      "blocks.0.attention.qkv.weight",
                                      "blocks.0.attention.qkv.bias",
                                      "blocks.0.attention.out.weight",
                                      "blocks.0.attention.out.bias",
                                      "blocks.0.depthwise.weight",
                                      "blocks.0.depthwise.bias",
                                      "blocks.0.norm2.weight",
                                      "blocks.0.norm2.bias",
                                      "blocks.0.feedforward.up.weight",
                                      "blocks.0.feedforward.up.bias",
                                      "blocks.0.feedforward.down.weight",
                                      "blocks.0.feedforward.down.bias",
                                      "norm.weight",
                                      "norm.bias",
                                      "head.weight",
                                      "head.bias"}));
  EXPECT_TRUE(LanguageModel(options)->buffers().empty());
}

TEST(LanguageModel, MixTakesThePlaceOfTheMixer) {
  auto options = small_options("depthwise");
  options.mix.places = "A=canon,O=context_pool";
  LanguageModel model(options);
  const auto keys = model->named_parameters().keys();
  const auto has = [&](const std::string& part) {
    return std::any_of(keys.begin(), keys.end(), [&](const auto& key) { return key.find(part) != std::string::npos; });
  };
  EXPECT_TRUE(has("blocks.1.mixers.A.weight"));
  EXPECT_TRUE(has("blocks.1.mixers.O.predictor.conv1.weight"));
  EXPECT_FALSE(has("depthwise"));
  const auto windows = model->windows(torch::randint(30, {2, 12}));
  ASSERT_EQ(windows.size(), 2);
  EXPECT_LT((windows[1].sigma - 4.0).abs().max().item<double>(), 1e-5);
  options.mix.places = "A=canon";
  EXPECT_TRUE(LanguageModel(options)->windows(torch::randint(30, {2, 12})).empty());
}

TEST(LanguageModel, HasLongformersWindowsAndDilations) {
  const auto of = [](const LanguageModelOptions& options) {
    std::vector<int64_t> windows, dilations;
    for (int64_t layer = 0; layer < options.layers; ++layer) {
      windows.push_back(models::reach_of(options, layer).window);
      dilations.push_back(models::reach_of(options, layer).dilation);
    }
    return std::pair(windows, dilations);
  };
  const auto [windows, dilations] = of({.attention = "window"});
  EXPECT_EQ(windows, (std::vector<int64_t>{32, 64, 64, 128, 256, 512, 512, 1024, 2048, 4096, 4096, 8192}));
  EXPECT_EQ(dilations, (std::vector<int64_t>{0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(of({.layers = 5, .window_first = 3, .window_last = 100}).first, (std::vector<int64_t>{3, 8, 16, 32, 100}));
  EXPECT_EQ(of({.layers = 24}).second[12], 1);
  EXPECT_EQ(of({.layers = 24}).second[11], 0);
  EXPECT_EQ(of({.layers = 1}).first, (std::vector<int64_t>{32}));
}

TEST(LanguageModel, SpansCostTheirMeanAndStayInRange) {
  auto options = small_options();
  EXPECT_FALSE(LanguageModel(options)->span_loss().defined());
  options.attention = "adaptive_span";
  options.span_limit = 200;
  options.span_loss = 0.01;
  LanguageModel model(options);
  EXPECT_EQ(model->span_loss().item<double>(), 0);
  {
    const torch::NoGradGuard no_grad;
    model->named_parameters()["blocks.0.attention.span"].copy_(torch::tensor({0.25, 1.5}));
    model->named_parameters()["blocks.1.attention.span"].copy_(torch::tensor({0.5, -1.0}));
  }
  model->clamp_spans();
  EXPECT_NEAR(model->span_loss().item<double>(), 0.01 * 200 * (0.25 + 1 + 0.5) / 4, 1e-6);
  model->span_loss().backward();  // from both ends too
  const auto gradient = model->named_parameters()["blocks.1.attention.span"].grad();
  EXPECT_NEAR(gradient[1].item<double>(), 0.01 * 200 / 4, 1e-6);
}

TEST(LanguageModel, DropsInTrainingOnly) {
  auto options = small_options();
  options.dropout = 0.2;
  LanguageModel model(options);
  model->to(device());
  const auto tokens = random_tokens(1, 20);
  EXPECT_FALSE(torch::equal(model(tokens), model(tokens)));
  model->eval();
  EXPECT_TRUE(torch::equal(model(tokens), model(tokens)));
}

TEST(LanguageModel, LayersOfRandomSourcesDiffer) {
  auto options = small_options("context_pool");
  options.pool.locality = "random_sparse";
  const LanguageModel model(options);
  EXPECT_EQ(model->blocks()[0]->context_pool()->options().layer, 0);
  EXPECT_EQ(model->blocks()[1]->context_pool()->options().layer, 1);
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(LanguageModelOptions, RefuseWhatTheyDoNotKnow) {
  const auto from = [](const char* text) {
    return message_of([&] { models::from_json(text, "run/model.safetensors"); });
  };
  const auto unknown = from(R"({"layers": 3, "pool_ration": 0.2})");
  EXPECT_NE(unknown.find("run/model.safetensors"), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("did you mean \"pool_ratio\""), std::string::npos) << unknown;
  EXPECT_NE(from(R"({"layers": "three"})").find("layers must be an integer"), std::string::npos);
  EXPECT_NE(from(R"({"layers": 2.5})").find("layers must be an integer"), std::string::npos);
  EXPECT_NE(from(R"({"layers": 18446744073709551615})").find("layers must be an integer"), std::string::npos);
  EXPECT_NE(from(R"({"dropout": "0.1"})").find("dropout must be a number"), std::string::npos);
  EXPECT_NE(from(R"({"mixer": 1})").find("mixer must be a word"), std::string::npos);
  EXPECT_NE(from("[]").find("JSON object"), std::string::npos);
  EXPECT_EQ(models::from_json(R"({"layers": 3})").layers, 3);
}

TEST(LanguageModelOptions, RefuseWhatCannotBeBuilt) {
  const auto build = [](const std::function<void(LanguageModelOptions&)>& change) {
    auto options = small_options("context_pool");
    change(options);
    return message_of([&] { LanguageModel model(options); });
  };
  EXPECT_EQ(build([](auto&) {}), "no error");
  EXPECT_NE(build([](auto& o) { o.layers = 0; }).find("layers must be from 1"), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.features = int64_t{1} << 40; }).find("features"), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.heads = 3; }).find("multiple of heads"), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.dropout = 1.5; }).find("dropout"), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.positions = "rotory"; }).find("\"rotary\""), std::string::npos);
  const auto window = [&](auto change) { return build([&](auto& o) { o.attention = "window", change(o); }); };
  EXPECT_EQ(window([](auto&) {}), "no error");
  EXPECT_NE(window([](auto& o) { o.attention = "windw"; }).find("\"window\""), std::string::npos);
  EXPECT_NE(window([](auto& o) { o.dilated_heads = 3; }).find("dilated_heads"), std::string::npos);
  EXPECT_NE(window([](auto& o) { o.window_doublings = -1; }).find("window_doublings must"), std::string::npos);
  EXPECT_NE(window([](auto& o) { o.window_first = 0; }).find("window_first must be from 1"), std::string::npos);
  EXPECT_NE(window([](auto& o) { o.window_last = 31; }).find("window_first must be at most"), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.span_limit = 0; }).find("span_limit"), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.span_loss = -1; }).find("span_loss"), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.pool.reference_length = 0; }).find("reference_length"), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.pool.size_norm = "softmax"; }).find("causal"), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.mix.places = "A=cannon"; }).find("\"canon\""), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.mix.places = "F=canon"; }).find("the places are ABOCDE"), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.mix.residual = "gate"; }).find("\"gated\""), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.mix.pool_taps = -1; }).find("taps must not be negative"), std::string::npos);
  EXPECT_NE(build([](auto& o) { o.mix.rank = 0; }).find("mixer_rank must be from 1"), std::string::npos);
}

TEST(LanguageModel, RefusesWhatAreNoTokens) {
  LanguageModel model(small_options());
  EXPECT_THROW(model(torch::zeros({2, 4})), c10::Error);
  EXPECT_THROW(model(torch::zeros({4}, torch::kInt64)), c10::Error);
  EXPECT_THROW(model(torch::zeros({4, 0}, torch::kInt64)), c10::Error);
  auto learned = small_options();
  learned.positions = "learned";
  EXPECT_NE(
      message_of([&] { LanguageModel(learned)->forward(random_tokens(1, 129).cpu()); }).find("only 128 positions"),
      std::string::npos);
}

}  // namespace
}  // namespace contextpool::testing
