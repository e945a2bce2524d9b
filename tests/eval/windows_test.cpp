// eval::evaluate: each token once, with the context that the protocol says; the same whatever the batch.
#include "contextpool/eval/windows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "../data/files.h"
#include "../device.h"
#include "contextpool/models/language_models.h"

namespace contextpool::testing {
namespace {

using data::Split;

std::string some_bytes(std::size_t size) {
  std::string text;
  for (std::uint64_t state = 1; text.size() < size;) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    text += static_cast<char>(state >> 56);
  }
  return text;
}

models::LanguageModel tiny_model() {
  torch::manual_seed(1);
  auto model = models::LanguageModel(models::find_language_model("cp-tiny").options);
  model->to(device());
  const torch::NoGradGuard no_grad;
  for (auto& p : model->parameters()) p.mul_(5);  // far from uniform predictions, so that contexts matter
  return model;
}

// Prediction by prediction: the context of token i is all before it in the first window, later at least window - step.
double by_definition(models::LanguageModel& model, const torch::Tensor& tokens, std::int64_t window,
                     std::int64_t step) {
  const torch::NoGradGuard no_grad;
  model->eval();
  double nats = 0;
  const auto predictions = tokens.size(0) - 1;
  for (std::int64_t i = 1; i <= predictions; ++i) {
    // The window whose scored part holds token i ends at `end`.
    const auto end = i <= window ? window : std::min(window + (i - window + step - 1) / step * step, predictions);
    const auto context = tokens.slice(0, end - window, i);
    const auto logits = model->forward(there(context).unsqueeze(0))[0][-1].to(torch::kDouble);
    nats -= torch::log_softmax(logits, 0)[tokens[i].item<std::int64_t>()].item<double>();
  }
  return nats / static_cast<double>(predictions);
}

TEST(Windows, FollowTheProtocol) {
  const Folder folder;
  const data::Text text(folder.write("t", some_bytes(1020)), "bytes");  // 51 tokens of test
  auto model = tiny_model();
  const auto tokens = text.symbols(Split::test, 0, 51);
  struct Case {
    std::int64_t window, step;
  };
  for (const auto& c : std::vector<Case>{{16, 4}, {16, 5}, {16, 16}, {20, 1}, {50, 7}}) {
    SCOPED_TRACE(std::to_string(c.window) + "/" + std::to_string(c.step));
    const auto expected = by_definition(model, tokens, c.window, c.step);
    for (const std::int64_t batch : {1, 3, 100}) {
      const auto score = eval::evaluate(model, text, Split::test, {.window = c.window, .step = c.step, .batch = batch});
      EXPECT_EQ(score.tokens, 50);
      EXPECT_NEAR(score.nats, expected, 1e-4);
      EXPECT_NEAR(score.bits(), expected / std::log(2), 2e-4);
    }
  }
}

TEST(Windows, AWindowLongerThanTheTextIsTheText) {
  const Folder folder;
  const data::Text text(folder.write("t", some_bytes(1020)), "bytes");
  auto model = tiny_model();
  const auto whole = eval::evaluate(model, text, Split::test, {.window = 50, .step = 50});
  const auto longer = eval::evaluate(model, text, Split::test, {});
  EXPECT_EQ(longer.tokens, 50);
  EXPECT_EQ(longer.nats, whole.nats);
}

TEST(Windows, ScoreAPartIfAsked) {
  const Folder folder;
  const data::Text text(folder.write("t", some_bytes(1020)), "bytes");
  auto model = tiny_model();
  const auto score = eval::evaluate(model, text, Split::test, {.window = 16, .step = 4, .tokens = 30});
  EXPECT_EQ(score.tokens, 29);
  EXPECT_NEAR(score.nats, by_definition(model, text.symbols(Split::test, 0, 30), 16, 4), 1e-4);
}

TEST(Windows, LeaveTheModelAsItWas) {
  const Folder folder;
  const data::Text text(folder.write("t", some_bytes(1020)), "bytes");
  auto model = tiny_model();
  for (const bool training : {true, false}) {
    model->train(training);
    std::int64_t done = -1;
    eval::evaluate(model, text, Split::dev, {.window = 16, .step = 8}, [&](std::int64_t n, std::int64_t all) {
      EXPECT_GT(n, done);
      EXPECT_EQ(all, 50);
      done = n;
    });
    EXPECT_EQ(done, 50);
    EXPECT_EQ(model->is_training(), training);
  }
}

TEST(Windows, RefuseWhatWouldLeaveTokensOut) {
  const Folder folder;
  const data::Text text(folder.write("t", some_bytes(1020)), "bytes");
  auto model = tiny_model();
  EXPECT_NE(
      message_of([&] { eval::evaluate(model, text, Split::test, {.window = 8, .step = 9}); }).find("leave tokens out"),
      std::string::npos);
  EXPECT_ANY_THROW(eval::evaluate(model, text, Split::test, {.window = 0}));
  const auto path = folder.write("short", some_bytes(30));
  const data::Text brief(path, "bytes");
  EXPECT_NE(message_of([&] { eval::evaluate(model, brief, Split::test, {}); }).find(path), std::string::npos);
}

}  // namespace
}  // namespace contextpool::testing
