// Generation: cached and recomputed texts are the same, and draws follow the model's distribution.
#include "contextpool/models/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "cases.h"

namespace contextpool::testing {
namespace {

using models::generate;
using models::GenerateOptions;
using models::sample;

std::vector<int64_t> prompt_of(int64_t length) {
  const auto tokens = random_tokens(1, length).cpu().contiguous();
  return {tokens.data_ptr<int64_t>(), tokens.data_ptr<int64_t>() + length};
}

class EveryModelGenerates : public ::testing::TestWithParam<ModelCase> {};

TEST_P(EveryModelGenerates, TheSameTextCachedAsRecomputed) {
  torch::manual_seed(11);
  auto model = random_model(GetParam().options);
  model->train();
  const std::vector<std::pair<int64_t, GenerateOptions>> ways{{1, {.temperature = 0}},
                                                              {40, {.temperature = 0}},
                                                              {1, {.temperature = 1, .seed = 1}},
                                                              {33, {.temperature = 0.7, .top_k = 5, .seed = 2}},
                                                              {2, {.temperature = 3, .top_k = 29, .seed = 3}}};
  for (auto [length, way] : ways) {
    const auto prompt = prompt_of(length);
    way.tokens = 30;
    const auto cached = generate(model, prompt, way);
    way.cached = false;
    EXPECT_EQ(cached, generate(model, prompt, way)) << "prompt of " << length << ", temperature " << way.temperature;
    EXPECT_EQ(cached.size(), 30);
  }
  EXPECT_TRUE(model->is_training());  // as it was
}

TEST_P(EveryModelGenerates, ALongPromptIsReadInPartsAndShowsIt) {
  torch::manual_seed(12);
  auto options = GetParam().options;
  options.length = std::max<int64_t>(options.length, 2000);
  auto model = random_model(options);
  const auto prompt = prompt_of(1100);
  std::vector<std::pair<int64_t, int64_t>> seen;
  const auto cached = generate(model, prompt, {.tokens = 2, .temperature = 0}, {},
                               [&](int64_t done, int64_t all) { seen.emplace_back(done, all); });
  EXPECT_EQ(cached, generate(model, prompt, {.tokens = 2, .temperature = 0, .cached = false}));
  EXPECT_EQ(seen, (std::vector<std::pair<int64_t, int64_t>>{{0, 1100}, {512, 1100}}));
}

INSTANTIATE_TEST_SUITE_P(All, EveryModelGenerates, ::testing::ValuesIn(model_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Generate, TemperatureZeroTakesTheLikeliest) {
  torch::manual_seed(5);
  auto model = random_model(small_options("context_pool"));
  auto text = prompt_of(6);
  const auto drawn = generate(model, text, {.tokens = 20, .temperature = 0});
  const torch::NoGradGuard no_grad;
  for (const auto symbol : drawn) {
    EXPECT_EQ(symbol, model(there(torch::tensor(text)).unsqueeze(0))[0][-1].argmax().item<int64_t>());
    text.push_back(symbol);
  }
}

TEST(Generate, FollowsItsSeedAndItsListener) {
  torch::manual_seed(6);
  auto model = random_model(small_options("depthwise"));
  const GenerateOptions options{.tokens = 30, .seed = 9};
  const auto drawn = generate(model, {3, 4}, options);
  EXPECT_EQ(drawn, generate(model, {3, 4}, options));
  EXPECT_NE(drawn, generate(model, {3, 4}, {.tokens = 30, .seed = 10}));
  std::vector<int64_t> seen;
  const auto cut = generate(model, {3, 4}, options, [&](int64_t symbol) {
    seen.push_back(symbol);
    return seen.size() < 7;
  });
  EXPECT_EQ(seen, (std::vector<int64_t>{drawn.begin(), drawn.begin() + 7}));
  EXPECT_EQ(cut, seen);
  EXPECT_TRUE(generate(model, {3}, {.tokens = 0}).empty());
}

// Counts of many draws against softmax(logits / temperature), by chi-squared.
TEST(Sample, FollowsTheDistribution) {
  constexpr int64_t kDraws = 20'000;
  const auto logits = torch::tensor({0.3, -1.0, 2.0, 0.0, 1.2, -0.4}, torch::kFloat64);
  for (const auto& [temperature, top_k] : std::vector<std::pair<double, int64_t>>{{1, 0}, {2, 0}, {0.5, 0}, {1, 3}}) {
    auto scores = logits / temperature;
    if (top_k > 0) scores.masked_fill_(logits < std::get<0>(logits.topk(top_k))[-1], -INFINITY);
    const auto expected = scores.softmax(0) * static_cast<double>(kDraws);
    auto counts = torch::zeros({6}, torch::kFloat64);
    const GenerateOptions options{.temperature = temperature, .top_k = top_k, .seed = 77};
    for (int64_t i = 0; i < kDraws; ++i) counts[sample(logits, options, i)] += 1;
    const auto live = expected > 0;
    EXPECT_TRUE((counts.masked_select(live.logical_not()) == 0).all().item<bool>());
    const auto chi = ((counts - expected).square() / expected).masked_select(live).sum().item<double>();
    EXPECT_LT(chi, 25) << "temperature " << temperature << ", top_k " << top_k;  // p < 2e-4 at 5 degrees
  }
}

TEST(Sample, BreaksTiesByTheSymbolsOrder) {
  const auto logits = torch::tensor({1.0, 2.0, 2.0, 2.0, 0.0});
  EXPECT_EQ(sample(logits, {.temperature = 0}, 0), 1);
  std::set<int64_t> drawn;
  for (uint64_t i = 0; i < 200; ++i) drawn.insert(sample(logits, {.temperature = 1, .top_k = 2}, i));
  EXPECT_EQ(drawn, (std::set<int64_t>{1, 2}));
}

TEST(Generate, RefusesWhatItCannotDo) {
  auto options = small_options();
  options.positions = "learned";
  auto model = random_model(options);
  EXPECT_THROW(generate(model, {}, {}), c10::Error);
  EXPECT_THROW(generate(model, {30}, {.tokens = 1}), c10::Error);
  EXPECT_THROW(generate(model, {1}, {.tokens = 1, .temperature = -1}), c10::Error);
  EXPECT_THROW(generate(model, {1}, {.tokens = -1}), c10::Error);
  EXPECT_THROW(generate(model, {1}, {.tokens = 1, .top_k = -1}), c10::Error);
  EXPECT_THROW(generate(model, {1}, {.tokens = 129}), c10::Error);
  EXPECT_EQ(generate(model, {1}, {.tokens = 128}).size(), 128);
  EXPECT_THROW(sample(torch::tensor({1.0, NAN}), {}, 0), c10::Error);
}

}  // namespace
}  // namespace contextpool::testing
