// Attention against torch's own MultiheadAttention and against its formula; masks, steps and causality.
#include "contextpool/nn/attention.h"

#include <cmath>

#include "expect.h"

namespace contextpool::testing {
namespace {

using nn::Attention;
using nn::AttentionCache;
using nn::AttentionOptions;

constexpr int64_t kFeatures = 24;
constexpr int64_t kHeads = 4;

Attention make(bool causal, torch::ScalarType type = torch::kFloat64) {
  Attention attention(AttentionOptions{.features = kFeatures, .heads = kHeads, .causal = causal});
  attention->to(type);
  return attention;
}

torch::Tensor not_after(int64_t tokens) { return torch::ones({tokens, tokens}, torch::kBool).tril(); }

torch::Tensor rows_of(const std::vector<int64_t>& lengths, int64_t tokens) {
  return torch::arange(tokens).unsqueeze(0) < torch::tensor(lengths).unsqueeze(1);
}

// torch's module with the same weights.
torch::nn::MultiheadAttention peer_of(Attention& attention) {
  torch::nn::MultiheadAttention peer(kFeatures, kHeads);
  peer->to(torch::kFloat64);
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
      const auto weight = random({3, 11, kFeatures}) * (padded ? mask.unsqueeze(-1) : torch::ones({1}));
      const auto y = padded ? attention(x, nn::Rotation(), mask) : attention(x);
      const auto t = x_peer.transpose(0, 1);
      const auto [peer_y, peer_weights] =
          peer(t, t, t, padded ? mask.logical_not() : torch::Tensor(), /*need_weights=*/false,
               causal ? torch::zeros({11, 11}, torch::kFloat64).masked_fill_(not_after(11).logical_not(), -INFINITY)
                      : torch::Tensor());
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
  const auto score = torch::einsum("bihd,bjhd->bhij", {q, k}) / std::sqrt(static_cast<double>(kFeatures / kHeads));
  const auto weight = score.masked_fill(not_after(8).logical_not(), -INFINITY).softmax(-1);
  const auto y = torch::einsum("bhij,bjhd->bihd", {weight, v}).flatten(2);
  EXPECT_LT(difference(attention(x, turn), torch::linear(y, p["out.weight"], p["out.bias"])), 1e-13);
}

TEST(Attention, LeavesPaddingAlone) {
  for (const bool causal : {false, true}) {
    auto attention = make(causal);
    const auto mask = torch::tensor({0, 0, 1, 1, 0, 1, 0}, torch::kBool).unsqueeze(0);  // any pattern
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
      const auto first = cache.length;
      const auto part = x.narrow(1, first, count);
      const auto y = attention->step(part, cache, positions->rotation(part, first));
      EXPECT_LT(difference(y, whole.narrow(1, first, count)), type == torch::kFloat64 ? 1e-13 : 2e-6);
    }
    EXPECT_EQ(cache.length, 210);
  }
  AttentionCache cache;
  EXPECT_THROW(make(false)->step(random({1, 1, kFeatures}), cache), c10::Error);
}

TEST(Attention, DropsWeightsInTrainingOnly) {
  Attention attention(AttentionOptions{.features = kFeatures, .heads = kHeads, .dropout = 0.5});
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

}  // namespace
}  // namespace contextpool::testing
