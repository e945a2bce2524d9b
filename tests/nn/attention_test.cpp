// Attention against torch's own MultiheadAttention and against its formula; masks, steps and causality. Limited reaches
// against their formula over all pairs, and the memory they take.
#include "contextpool/nn/attention.h"

#include <c10/core/CPUAllocator.h>

#include <cmath>

#include "expect.h"

namespace contextpool::testing {
namespace {

using nn::Attention;
using nn::AttentionCache;
using nn::AttentionOptions;
using nn::Reach;

constexpr int64_t kFeatures = 24;
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadFeatures = kFeatures / kHeads;

Attention make(bool causal, torch::ScalarType type = torch::kFloat64) {
  Attention attention(AttentionOptions{.features = kFeatures, .heads = kHeads, .causal = causal});
  attention->to(device(), type);
  return attention;
}

torch::Tensor not_after(int64_t tokens) { return there(torch::ones({tokens, tokens}, torch::kBool).tril()); }

torch::Tensor rows_of(const std::vector<int64_t>& lengths, int64_t tokens) {
  return there(torch::arange(tokens).unsqueeze(0) < torch::tensor(lengths).unsqueeze(1));
}

// torch's module with the same weights.
torch::nn::MultiheadAttention peer_of(Attention& attention) {
  torch::nn::MultiheadAttention peer(kFeatures, kHeads);
  peer->to(device(), torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const auto ours = attention->named_parameters();
  peer->in_proj_weight.copy_(ours["qkv.weight"]);
  peer->in_proj_bias.copy_(ours["qkv.bias"]);
  peer->out_proj->weight.copy_(ours["out.weight"]);
  peer->out_proj->bias.copy_(ours["out.bias"]);
  return peer;
}

TEST(Attention, IsTorchsMultiheadAttention) {
  for (const bool causal : {false, true}) {
    for (const bool padded : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "causal " << causal << " padded " << padded);
      auto attention = make(causal);
      auto peer = peer_of(attention);
      const auto x = random({3, 11, kFeatures}).requires_grad_(), x_peer = x.detach().clone().requires_grad_();
      const auto mask = rows_of({11, 4, 1}, 11);
      const auto weight = random({3, 11, kFeatures}) * (padded ? mask.unsqueeze(-1) : there(torch::ones({1})));
      const auto y = padded ? attention(x, nn::Rotation(), mask) : attention(x);
      const auto t = x_peer.transpose(0, 1);
      const auto [peer_y, peer_weights] = peer(
          t, t, t, padded ? mask.logical_not() : torch::Tensor(), /*need_weights=*/false,
          causal ? random({11, 11}).zero_().masked_fill_(not_after(11).logical_not(), -INFINITY) : torch::Tensor());
      (y * weight).sum().backward();
      (peer_y.transpose(0, 1) * weight).sum().backward();
      EXPECT_LT(difference(y * weight, peer_y.transpose(0, 1) * weight), 1e-13);
      EXPECT_LT(difference(x.grad(), x_peer.grad()), 1e-13);
      EXPECT_LT(difference(attention->named_parameters()["qkv.weight"].grad(), peer->in_proj_weight.grad()), 1e-13);
      EXPECT_LT(difference(attention->named_parameters()["out.bias"].grad(), peer->out_proj->bias.grad()), 1e-13);
    }
  }
}

TEST(Attention, TurnsQueriesAndKeysButNotValues) {
  auto attention = make(true);
  nn::Positions positions(nn::PositionsOptions{.kind = "rotary", .features = kFeatures, .heads = kHeads});
  const auto x = random({2, 8, kFeatures});
  const auto p = attention->named_parameters();
  const auto turn = positions->rotation(x);
  const auto qkv = torch::linear(x, p["qkv.weight"], p["qkv.bias"]).view({2, 8, 3, kHeads, kFeatures / kHeads});
  const auto q = nn::rotate(qkv.select(2, 0), turn), k = nn::rotate(qkv.select(2, 1), turn), v = qkv.select(2, 2);
  const auto score = torch::einsum("bihd,bjhd->bhij", {q, k}) / std::sqrt(static_cast<double>(kHeadFeatures));
  const auto weight = score.masked_fill(not_after(8).logical_not(), -INFINITY).softmax(-1);
  const auto y = torch::einsum("bhij,bjhd->bihd", {weight, v}).flatten(2);
  EXPECT_LT(difference(attention(x, turn), torch::linear(y, p["out.weight"], p["out.bias"])), 1e-13);
}

TEST(Attention, LeavesPaddingAlone) {
  for (const bool causal : {false, true}) {
    auto attention = make(causal);
    const auto mask = there(torch::tensor({0, 0, 1, 1, 0, 1, 0}, torch::kBool)).unsqueeze(0);  // any pattern
    const auto live = mask[0].nonzero().flatten();
    auto x = random({1, 7, kFeatures});
    const auto alone = attention(x.index_select(1, live));
    x.masked_fill_(mask.logical_not().unsqueeze(-1), NAN);
    x.requires_grad_();
    const auto y = attention(x, nn::Rotation(), mask).index_select(1, live);
    EXPECT_LT(difference(y, alone), 1e-13);
    y.sum().backward();
    EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
    for (const auto& parameter : attention->parameters()) {
      EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
    }
  }
}

TEST(Attention, StepsEqualTheWhole) {
  for (const auto type : {torch::kFloat64, torch::kFloat32}) {
    auto attention = make(true, type);
    nn::Positions positions(nn::PositionsOptions{.kind = "rotary", .features = kFeatures, .heads = kHeads});
    const torch::NoGradGuard no_grad;
    const auto x = random({2, 210, kFeatures}, type);
    const auto whole = attention(x, positions->rotation(x));
    AttentionCache cache;
    for (const int64_t count : {1, 5, 1, 90, 1, 1, 64, 47}) {  // the cache's room is outgrown twice
      const auto first = cache.length();
      const auto part = x.narrow(1, first, count);
      const auto y = attention->step(part, cache, positions->rotation(part, first));
      EXPECT_LT(difference(y, whole.narrow(1, first, count)), type == torch::kFloat64 ? 1e-13 : 1e-5);
    }
    EXPECT_EQ(cache.length(), 210);
  }
  AttentionCache cache;
  EXPECT_THROW(make(false)->step(random({1, 1, kFeatures}), cache), c10::Error);
}

TEST(Attention, DropsWeightsInTrainingOnly) {
  Attention attention(AttentionOptions{.features = kFeatures, .heads = kHeads, .dropout = 0.5});
  attention->to(device());
  const auto x = random({1, 9, kFeatures}, torch::kFloat32);
  EXPECT_FALSE(torch::equal(attention(x), attention(x)));
  attention->eval();
  EXPECT_TRUE(torch::equal(attention(x), attention(x)));
}

TEST(Attention, RefusesWhatItCannotDo) {
  EXPECT_THROW(Attention(AttentionOptions{.features = 10, .heads = 3}), c10::Error);
  EXPECT_THROW(Attention(AttentionOptions{.dropout = 1}), c10::Error);
  EXPECT_THROW(make(true)->forward(random({2, 5, kFeatures + 1})), c10::Error);
}

constexpr int64_t kTokens = 210;

std::vector<Reach> reaches() {
  return {{.kind = "window", .window = 1},
          {.kind = "window", .window = 7},
          {.kind = "window", .window = 40, .dilation = 1, .dilated_heads = 2},
          {.kind = "window", .window = 5, .dilation = 3, .dilated_heads = 4},
          {.kind = "window", .window = 6, .dilation = 2, .dilated_heads = 1, .row = 20, .window_doublings = 3},
          {.kind = "window", .window = 500, .dilation = 2, .dilated_heads = 1},
          {.kind = "adaptive_span", .span_limit = 20},
          {.kind = "adaptive_span", .span_limit = 90},
          {.kind = "adaptive_span", .span_limit = 1000}};
}

Attention make(const Reach& reach, torch::ScalarType type = torch::kFloat64) {
  Attention attention(AttentionOptions{.features = kFeatures, .heads = kHeads, .causal = true, .reach = reach});
  attention->to(device(), type);
  const torch::NoGradGuard no_grad;
  if (attention->span.defined()) attention->span.copy_(torch::tensor({0.0, 0.3, 0.871, 1.0}));
  return attention;
}

nn::Rotation turns(const torch::Tensor& x, int64_t first = 0) {
  return nn::Positions(nn::PositionsOptions{.kind = "rotary", .features = kFeatures, .heads = kHeads})
      ->rotation(x, first);
}

// What a weight is multiplied by, [heads, queries, keys]: the documentation, pair by pair.
torch::Tensor shares(Attention& attention, int64_t tokens) {
  const auto& r = attention->options().reach;
  std::vector<torch::Tensor> heads;
  for (int64_t h = 0; h < kHeads; ++h) {
    const auto step = r.kind == "window" && h >= kHeads - r.dilated_heads ? r.dilation + 1 : 1;
    const auto at = there(torch::arange(tokens)), distance = at.unsqueeze(1) - at;
    if (r.kind == "adaptive_span") {
      const auto reach = 32 + attention->span[h].clamp(0, 1) * r.span_limit;
      const auto seen = (distance >= 0) & (distance < r.span_limit);
      heads.push_back(((reach - distance) / 32).clamp(0, 1) * seen);
      continue;
    }
    auto window = there(torch::full({tokens, 1}, r.window));
    for (int64_t i = 0, from = r.row; i < r.window_doublings; ++i, from *= 2) window.slice(0, from).mul_(2);
    const auto seen = (distance >= 0) & (distance % step == 0) & (distance.floor_divide(step) < window);
    heads.push_back(seen.to(torch::kFloat64));
  }
  return torch::stack(heads);
}

torch::Tensor formula(Attention& attention, const torch::Tensor& x) {
  const auto p = attention->named_parameters();
  const auto tokens = x.size(1), batch = x.size(0);
  const auto qkv =
      torch::linear(x, p["qkv.weight"], p["qkv.bias"]).view({batch, tokens, 3, kHeads, kFeatures / kHeads});
  const auto q = nn::rotate(qkv.select(2, 0), turns(x)), k = nn::rotate(qkv.select(2, 1), turns(x));
  const auto score = torch::einsum("bihd,bjhd->bhij", {q, k}) / std::sqrt(static_cast<double>(kHeadFeatures));
  const auto weight = score.exp() * shares(attention, tokens);
  const auto y = torch::einsum("bhij,bjhd->bihd", {weight / weight.sum(-1, true), qkv.select(2, 2)}).flatten(2);
  return torch::linear(y, p["out.weight"], p["out.bias"]);
}

class EveryReach : public ::testing::TestWithParam<Reach> {
 protected:
  void SetUp() override { torch::manual_seed(3); }
};

TEST_P(EveryReach, IsItsFormulaForwardAndBackward) {
  auto attention = make(GetParam());
  for (const int64_t tokens : {int64_t{1}, int64_t{33}, kTokens}) {
    const auto x = random({2, tokens, kFeatures}).requires_grad_(), weight = random({2, tokens, kFeatures});
    const auto y = attention(x, turns(x)), expected = formula(attention, x);
    EXPECT_LT(difference(y, expected), 1e-12);
    std::vector<torch::Tensor> inputs{x};
    for (const auto& item : attention->named_parameters()) {
      if (item.key() != "span") inputs.push_back(item.value());  // these stand on corners: below
    }
    const auto got = torch::autograd::grad({y}, inputs, {weight});
    const auto want = torch::autograd::grad({expected}, inputs, {weight});
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_LT(difference(got[i], want[i]), 1e-11);
  }
}

TEST_P(EveryReach, TakesRowsAndBatchesOfNothing) {
  auto attention = make(GetParam());
  for (const auto& sizes : {std::vector<int64_t>{2, 0, kFeatures}, std::vector<int64_t>{0, 50, kFeatures}}) {
    EXPECT_EQ(attention(random(sizes)).sizes(), sizes);
    const auto mask = there(torch::ones({sizes[0], sizes[1]}, torch::kBool));
    EXPECT_EQ(attention(random(sizes), nn::Rotation(), mask).sizes(), sizes);
  }
}

TEST_P(EveryReach, StepsEqualTheWhole) {
  for (const auto type : {torch::kFloat64, torch::kFloat32}) {
    auto attention = make(GetParam(), type);
    const torch::NoGradGuard no_grad;
    const auto x = random({2, kTokens, kFeatures}, type);
    const auto whole = attention(x, turns(x));
    AttentionCache cache;
    for (const int64_t count : {1, 40, 1, 25, 96, 1, 46}) {
      const auto first = cache.length();
      const auto part = x.narrow(1, first, count);
      const auto y = attention->step(part, cache, turns(part, first));
      EXPECT_LT(difference(y, whole.narrow(1, first, count)), type == torch::kFloat64 ? 1e-13 : 1e-5);
    }
    EXPECT_EQ(cache.length(), kTokens);
  }
}

TEST_P(EveryReach, LeaksNoBitOfTheFuture) {
  auto attention = make(GetParam(), torch::kFloat32);
  expect_no_bit_of_the_future([&](const torch::Tensor& x) { return attention(x, turns(x)); }, kTokens, kFeatures,
                              {1, 17, 64, 130, kTokens - 1});
}

TEST_P(EveryReach, LeavesPaddingAlone) {
  auto attention = make(GetParam());
  const std::vector<int64_t> lengths{kTokens, 70, 1};
  auto x = random({3, kTokens, kFeatures});
  const auto mask = rows_of(lengths, kTokens);
  std::vector<torch::Tensor> alone, live;
  for (int64_t b = 0; b < 3; ++b) {
    const auto row = x.narrow(0, b, 1).slice(1, 0, lengths[b]).clone();
    alone.push_back(attention(row, turns(row))[0]);
  }
  x.masked_fill_(mask.logical_not().unsqueeze(-1), NAN);
  x.requires_grad_();
  const auto y = attention(x, turns(x), mask);
  for (int64_t b = 0; b < 3; ++b) live.push_back(y[b].slice(0, 0, lengths[b]));
  EXPECT_LT(difference(torch::cat(live), torch::cat(alone)), 1e-12);
  torch::cat(live).sum().backward();
  EXPECT_TRUE((x.grad().masked_select(mask.logical_not().unsqueeze(-1)) == 0).all().item<bool>());
  for (const auto& item : attention->named_parameters()) {
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryReach, ::testing::ValuesIn(reaches()),
                         [](const auto& info) { return info.param.kind + "_" + std::to_string(info.index); });

TEST(AdaptiveSpan, HasTheGradientOfItsSlope) {
  torch::manual_seed(3);
  auto attention = make(Reach{.kind = "adaptive_span", .span_limit = 60});
  const auto x = random({1, 90, kFeatures}), weight = random({1, 90, kFeatures});
  const auto loss = [&] { return (attention(x, turns(x)) * weight).sum(); };
  const auto set = [&](const torch::Tensor& z) {
    const torch::NoGradGuard no_grad;
    attention->span.copy_(z);
  };
  // Where a span is a whole number of tokens, a key stands on a corner of the ramp.
  const auto z = there(torch::tensor({0.011, 0.311, 0.5171, 0.903}, torch::kFloat64));
  set(z);
  const auto gradient = torch::autograd::grad({loss()}, {attention->span})[0];
  constexpr double kStep = 1e-6;
  for (int64_t h = 0; h < kHeads; ++h) {
    const auto nudge = kStep * there(torch::nn::functional::one_hot(torch::tensor(h), kHeads));
    set(z + nudge);
    const auto above = loss().item<double>();
    set(z - nudge);
    EXPECT_NEAR(gradient[h].item<double>(), (above - loss().item<double>()) / (2 * kStep), 1e-6) << h;
  }
}

TEST(AdaptiveSpan, StartsAtZeroAndCanGrow) {
  torch::manual_seed(3);
  Attention attention(AttentionOptions{
      .features = kFeatures, .heads = kHeads, .causal = true, .reach = {.kind = "adaptive_span", .span_limit = 100}});
  attention->to(device());
  EXPECT_TRUE((attention->span == 0).all().item<bool>());
  const auto x = random({1, 90, kFeatures}, torch::kFloat32);
  attention(x).square().sum().backward();
  EXPECT_TRUE((attention->span.grad() != 0).all().item<bool>());
}

// Counts the largest array asked for; memory itself comes from the allocator that was there before.
class Watch final : public c10::Allocator {
 public:
  Watch() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 1); }
  ~Watch() override { c10::SetCPUAllocator(before_, 1); }
  c10::DataPtr allocate(size_t bytes) override {
    largest = std::max(largest, bytes);
    return before_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return before_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const override { before_->copy_data(to, from, count); }

  std::size_t largest = 0;

 private:
  c10::Allocator* before_;
};

TEST(LimitedReach, TakesNoMemoryOfAllPairs) {
  if (!on_cpu()) GTEST_SKIP() << "watches the memory of the CPU";
  constexpr int64_t kLong = 16384;
  for (const auto& reach : {Reach{.kind = "window", .window = 64, .dilation = 1, .dilated_heads = 2},
                            Reach{.kind = "adaptive_span", .span_limit = 8192}}) {
    Attention attention(AttentionOptions{.features = kFeatures, .heads = kHeads, .causal = true, .reach = reach});
    const auto x = random({1, kLong, kFeatures}, torch::kFloat32).requires_grad_();
    const Watch watch;
    attention(x).sum().backward();
    EXPECT_GT(watch.largest, kLong * kFeatures * sizeof(float) - 1);
    EXPECT_LT(watch.largest, kLong * 64 * kHeads * 2 * sizeof(float)) << "bytes, far below " << kLong * kLong;
  }
}

TEST(LimitedReach, RefusesWhatItCannotDo) {
  const auto message = [](const Reach& reach, bool causal = true) -> std::string {
    try {
      Attention(AttentionOptions{.features = kFeatures, .heads = kHeads, .causal = causal, .reach = reach});
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  EXPECT_EQ(message({.kind = "windows"}),
            "Attention: attention is \"windows\", expected one of full, window, adaptive_span, local, area; did you "
            "mean \"window\"?");
  EXPECT_EQ(message({.kind = "window"}, false), "Attention: attention \"window\" must be causal");
  EXPECT_EQ(message({.kind = "window", .window = 0}), "Attention: window must be positive, but is 0");
  EXPECT_EQ(message({.kind = "window", .dilation = -1}), "Attention: dilation must not be negative, but is -1");
  EXPECT_EQ(message({.kind = "window", .dilated_heads = 5}),
            "Attention: dilated_heads must be from 0 to the number of heads, 4, but is 5");
  EXPECT_EQ(message({.kind = "window", .row = 0}), "Attention: row must be positive, but is 0");
  EXPECT_EQ(message({.kind = "window", .window_doublings = 17}),
            "Attention: window_doublings must be from 0 to 16, but is 17");
  EXPECT_EQ(message({.kind = "adaptive_span", .span_limit = 0}), "Attention: span_limit must be positive, but is 0");
  EXPECT_EQ(message({.kind = "adaptive_span", .window = 0}), "no error");
}

}  // namespace
}  // namespace contextpool::testing
