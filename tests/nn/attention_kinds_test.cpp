// Local and area attention, over the row itself and over another row, against their formulas: a query at a time, and
// for areas by enumerating all of them. Gradients, padding of any pattern, causality, steps, and rows that share a
// memory.
#include <cmath>

#include "contextpool/nn/attention.h"
#include "contextpool/nn/cross_attention.h"
#include "expect.h"
#include "steps.h"

namespace contextpool::testing {
namespace {

using nn::Attention;
using nn::AttentionOptions;
using nn::CrossAttention;
using nn::CrossAttentionOptions;
using torch::Tensor;

constexpr int64_t kFeatures = 12, kHeads = 2, kHeadFeatures = kFeatures / kHeads, kWidth = 3;
const std::vector<std::string> kKinds = {"full", "local", "area"};

template <typename Module>
Module scattered(Module module) {
  torch::manual_seed(5);
  module->to(device(), torch::kFloat64);
  module->eval();
  for (auto& parameter : module->parameters()) parameter.data().normal_(0, 0.6);
  return module;
}

Attention self(const std::string& kind, bool causal) {
  return scattered(Attention(AttentionOptions{
      .features = kFeatures, .heads = kHeads, .causal = causal, .reach = {.kind = kind, .area_width = kWidth}}));
}

CrossAttention cross(const std::string& kind) {
  return scattered(CrossAttention(
      CrossAttentionOptions{.features = kFeatures, .heads = kHeads, .kind = kind, .area_width = kWidth}));
}

// What one query sees: the indices of real keys, in order.
using Seen = std::vector<int64_t>;
using Parameters = torch::OrderedDict<std::string, Tensor>;

// y of one query [n], among keys and values [keys, n] of one head.
Tensor one_query(const std::string& kind, const Parameters& p, int64_t head, const Tensor& q, const Tensor& k,
                 const Tensor& v, const Seen& seen) {
  std::vector<Tensor> scores, values;
  const double scale = std::sqrt(static_cast<double>(kHeadFeatures));
  const auto count = static_cast<double>(seen.size());
  if (kind == "area") {
    for (std::size_t first = 0; first < seen.size(); ++first) {
      Tensor key = torch::zeros_like(q), value = torch::zeros_like(q);
      for (int64_t width = 1; width <= kWidth && first + width <= seen.size(); ++width) {
        const auto last = seen[first + width - 1];
        if (last != seen[first] + width - 1) break;  // a token that does not exist lies between
        key = key + k[last];
        value = value + v[last];
        scores.push_back(q.dot(key / static_cast<double>(width)) / scale);
        values.push_back(value);
      }
    }
  } else {
    Tensor centre, sigma;
    if (kind == "local") {
      const auto hidden = p["local.weight"][head].matmul(q).tanh();
      centre = count * torch::sigmoid(p["local.centre"][head].dot(hidden));
      sigma = count * torch::sigmoid(p["local.width"][head].dot(hidden)) / 2;
    }
    for (std::size_t j = 0; j < seen.size(); ++j) {
      auto score = q.dot(k[seen[j]]) / scale;
      if (kind == "local") score = score - (static_cast<double>(j) - centre).square() / (2 * sigma.square());
      scores.push_back(score);
      values.push_back(v[seen[j]]);
    }
  }
  return torch::matmul(torch::stack(scores).softmax(0), torch::stack(values));
}

// q [B, M, H, n], k and v [B, N, H, n], real [B, N]; 0 at padded queries of a row over itself.
Tensor by_formula(const std::string& kind, const Parameters& p, const Tensor& q, const Tensor& k, const Tensor& v,
                  const Tensor& real, bool causal, bool self) {
  std::vector<Tensor> all;
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t i = 0; i < q.size(1); ++i) {
      Seen seen;
      for (int64_t j = 0; j < k.size(1); ++j) {
        if (real[b][j].item<bool>() && (!causal || j <= i)) seen.push_back(j);
      }
      for (int64_t h = 0; h < kHeads; ++h) {
        all.push_back(self && !real[b][i].item<bool>()
                          ? torch::zeros_like(q[0][0][0])
                          : one_query(kind, p, h, q[b][i][h], k[b].select(1, h), v[b].select(1, h), seen));
      }
    }
  }
  return torch::linear(torch::stack(all).view({q.size(0), q.size(1), kFeatures}), p["out.weight"], p["out.bias"]);
}

// [B, N, projections, H, n]
Tensor linear(const Parameters& p, const std::string& name, const Tensor& x) {
  return torch::linear(x, p[name + ".weight"], p[name + ".bias"]).unflatten(-1, {-1, kHeads, kHeadFeatures});
}

void expect_same_gradients(const Tensor& got, const Tensor& expected, const std::vector<Tensor>& leaves) {
  const auto weight = random(got.sizes());
  const auto of = [&](const Tensor& y) { return torch::autograd::grad({y}, leaves, {weight}, true, false, true); };
  const auto ours = of(got), theirs = of(expected);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    ASSERT_TRUE(ours[i].defined() && theirs[i].defined()) << "leaf " << i;
    EXPECT_LT(difference(ours[i], theirs[i]), 1e-11) << "leaf " << i;
  }
}

Tensor any_padding() {
  return there(torch::tensor({{1, 1, 1, 1, 1, 1, 1}, {0, 0, 1, 1, 0, 1, 0}, {0, 0, 0, 0, 0, 0, 1}}, torch::kBool));
}

TEST(AttentionKinds, OfARowOverItselfAreTheirFormulas) {
  for (const auto& kind : kKinds) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(kind + (causal ? " causal" : ""));
      auto attention = self(kind, causal);
      const auto p = attention->named_parameters();
      const auto x = random({3, 7, kFeatures}).requires_grad_();
      const auto real = any_padding();
      const auto qkv = linear(p, "qkv", x);
      const auto expected =
          by_formula(kind, p, qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2), real, causal, true).index({real});
      const auto y = attention(x, nn::Rotation(), real).index({real});
      EXPECT_LT(difference(y, expected), 1e-12);
      auto leaves = attention->parameters();
      leaves.push_back(x);
      expect_same_gradients(y, expected, leaves);
      const auto all = torch::ones_like(real);
      EXPECT_LT(difference(attention(x), attention(x, nn::Rotation(), all)), 1e-12);
    }
  }
}

TEST(AttentionKinds, OfARowOverAnotherAreTheirFormulas) {
  for (const auto& kind : kKinds) {
    SCOPED_TRACE(kind);
    auto attention = cross(kind);
    const auto p = attention->named_parameters();
    const auto x = random({3, 5, kFeatures}).requires_grad_(), memory = random({3, 7, kFeatures}).requires_grad_();
    const auto kv = linear(p, "kv", memory);
    const auto expected = by_formula(kind, p, linear(p, "q", x).select(2, 0), kv.select(2, 0), kv.select(2, 1),
                                     any_padding(), false, false);
    const auto y = attention(x, attention->remember(memory, any_padding()));
    EXPECT_LT(difference(y, expected), 1e-12);
    auto leaves = attention->parameters();
    leaves.push_back(x);
    leaves.push_back(memory);
    expect_same_gradients(y, expected, leaves);
  }
}

TEST(AttentionKinds, LeavePaddingAndTheRestOfTheBatchAlone) {
  for (const auto& kind : kKinds) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(kind + (causal ? " causal" : ""));
      auto attention = self(kind, causal);
      const auto real = there(torch::arange(9).unsqueeze(0) < torch::tensor({{9}, {4}, {1}}));
      auto x = random({3, 9, kFeatures});
      std::vector<Tensor> alone;
      for (int64_t b = 0; b < 3; ++b) {
        const auto length = real[b].sum().item<int64_t>();
        alone.push_back(attention(x.narrow(0, b, 1).narrow(1, 0, length))[0]);
      }
      x.masked_fill_(real.logical_not().unsqueeze(-1), NAN);
      x.requires_grad_();
      const auto y = attention(x, nn::Rotation(), real).index({real});
      EXPECT_LT(difference(y, torch::cat(alone)), 1e-12);
      y.sum().backward();
      EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
      for (const auto& parameter : attention->parameters()) {
        EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
      }
    }
  }
}

TEST(AttentionKinds, SeeNoBitOfTheFuture) {
  for (const auto& kind : kKinds) {
    SCOPED_TRACE(kind);
    auto attention = self(kind, true);
    attention->to(torch::kFloat32);
    expect_no_bit_of_the_future([&](const Tensor& x) { return attention(x); }, 20, kFeatures, {1, 7, 19});
  }
}

TEST(AttentionKinds, StepsEqualTheWhole) {
  for (const std::string kind : {"local", "area"}) {
    SCOPED_TRACE(kind);
    auto attention = self(kind, true);
    const auto x = random({4, 30, kFeatures}).requires_grad_();
    auto leaves = attention->parameters();
    leaves.push_back(x);
    expect_steps<nn::AttentionCache>(
        {.forward = [&](const Tensor& v, const nn::Padding& p) { return attention(v, nn::Rotation(), p); },
         .step = [&](const Tensor& v, nn::AttentionCache& c,
                     const nn::Padding& p) { return attention->step(v, c, {}, p); }},
        x, leaves);
  }
}

TEST(AttentionKinds, StayCloseInBFloat16AndFiniteAtExtremes) {
  for (const auto& kind : kKinds) {
    SCOPED_TRACE(kind);
    auto attention = self(kind, true);
    attention->to(torch::kFloat32);
    const auto x = random({2, 40, kFeatures}, torch::kFloat32);
    const auto y = attention(x);
    {
      const BFloat16 autocast;
      EXPECT_LT(((attention(x) - y).norm() / y.norm()).item<double>(), 0.05);
    }
    if (kind != "local") continue;
    const torch::NoGradGuard no_grad;
    for (const double extreme : {-1e4, 1e4}) {  // windows of no width, and of the whole row
      attention->named_parameters()["local.width"].fill_(extreme);
      torch::AutoGradMode with_grad(true);
      attention->zero_grad();
      const auto wild = attention(x);
      EXPECT_TRUE(wild.isfinite().all().item<bool>());
      wild.sum().backward();
      for (const auto& parameter : attention->parameters()) {
        EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
      }
    }
  }
}

TEST(CrossMemory, IsSharedByRowsAndChosen) {
  const torch::NoGradGuard no_grad;
  for (const auto& kind : kKinds) {
    SCOPED_TRACE(kind);
    auto attention = cross(kind);
    const auto memory = random({3, 7, kFeatures}), x = random({6, 2, kFeatures});
    const auto own = there(torch::tensor({0, 0, 1, 1, 2, 2}));
    const auto expected =
        attention(x, attention->remember(memory.index_select(0, own), any_padding().index_select(0, own)));
    auto shared = attention->remember(memory, any_padding());
    shared.repeat(2);
    EXPECT_EQ(shared.rows(), 6);
    EXPECT_LT(difference(attention(x, shared), expected), 1e-12);
    auto chosen = shared;
    const auto rows = there(torch::tensor({5, 0, 3}));
    chosen.select(rows);
    EXPECT_LT(difference(attention(x.index_select(0, rows), chosen), expected.index_select(0, rows)), 1e-12);
    chosen = shared;
    chosen.select_shared(there(torch::tensor({true, false, true})));
    const auto stay = there(torch::tensor({0, 1, 4, 5}));
    EXPECT_LT(difference(attention(x.index_select(0, stay), chosen), expected.index_select(0, stay)), 1e-12);
    EXPECT_LT(difference(attention(x, shared), expected), 1e-12) << "copies are independent";
    EXPECT_THROW(attention(x.slice(0, 0, 5), shared), c10::ValueError);
    EXPECT_THROW(shared.repeat(0), c10::ValueError);
  }
}

TEST(CrossMemory, WithoutARealTokenGivesTheSameWhateverItHolds) {
  for (const auto& kind : kKinds) {
    SCOPED_TRACE(kind);
    auto attention = cross(kind);
    const auto x = random({1, 2, kFeatures});
    const auto none = there(torch::zeros({1, 4}, torch::kBool));
    const auto y = attention(x, attention->remember(random({1, 4, kFeatures}) / 0.0, none));
    const auto other = attention(x, attention->remember(random({1, 9, kFeatures}), none.repeat({1, 3}).slice(1, 0, 9)));
    EXPECT_LT(difference(y, other), 1e-12);
  }
}

TEST(AttentionKinds, RefuseWhatCannotBeBuilt) {
  EXPECT_THROW(self("areas", true), c10::ValueError);
  EXPECT_THROW(cross("window"), c10::ValueError);
  EXPECT_THROW(Attention(AttentionOptions{.reach = {.kind = "area", .area_width = 0}}), c10::ValueError);
  EXPECT_THROW(CrossAttention(CrossAttentionOptions{.features = 10, .heads = 3}), c10::ValueError);
  EXPECT_THROW(cross("full")->remember(random({2, 0, kFeatures})), c10::ValueError);
}

}  // namespace
}  // namespace contextpool::testing
