// The block against its formula in float64 for every mixer in every place; padding, steps, causality, counts, names.
#include "contextpool/nn/block.h"

#include <cmath>
#include <numeric>

#include "expect.h"

namespace contextpool::testing {
namespace {

using nn::BlockCache;
using nn::TransformerBlock;
using nn::TransformerBlockOptions;

constexpr int64_t kFeatures = 16;

TransformerBlockOptions options_of(const std::string& mixer, const std::string& placement, bool causal) {
  return {.features = kFeatures,
          .heads = 2,
          .feedforward = 40,
          .causal = causal,
          .mixer = mixer,
          .placement = placement,
          .taps = 5,
          .pool = {.reference_length = causal ? 40 : 0, .usual_length = 40, .hidden = 8}};
}

// Every parameter random: fresh ones have zeros that would hide mistakes.
TransformerBlock make(const TransformerBlockOptions& options, torch::ScalarType type = torch::kFloat64) {
  TransformerBlock block(options);
  block->to(device(), type);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : block->parameters()) parameter.copy_(random(parameter.sizes(), type) * 0.3);
  return block;
}

nn::Rotation turns(const torch::Tensor& x, int64_t first = 0) {
  return nn::Positions(nn::PositionsOptions{.kind = "rotary", .features = kFeatures, .heads = 2})->rotation(x, first);
}

template <typename Module>
Module child(TransformerBlock& block, const std::string& name) {
  return Module(std::dynamic_pointer_cast<typename Module::Impl>(block->named_children()[name]));
}

// The formula, spelt out for each place. Attention and mixers have tests of their own.
torch::Tensor formula(TransformerBlock& block, const torch::Tensor& x, const nn::Rotation& rotation) {
  const auto p = block->named_parameters();
  const auto norm = [&](const torch::Tensor& t, const std::string& name) {
    const auto centred = t - t.mean(-1, true);
    return centred / (centred.square().mean(-1, true) + 1e-5).sqrt() * p[name + ".weight"] + p[name + ".bias"];
  };
  auto attention = child<nn::Attention>(block, "attention");
  const auto feedforward = [&](const torch::Tensor& t) {
    const auto h = torch::linear(t, p["feedforward.up.weight"], p["feedforward.up.bias"]);
    const auto gelu = h * 0.5 * (1 + torch::erf(h / std::sqrt(2.0)));
    return torch::linear(gelu, p["feedforward.down.weight"], p["feedforward.down.bias"]);
  };
  const auto& [mixer, placement] = std::tie(block->options().mixer, block->options().placement);
  const auto mix = [&](const torch::Tensor& t) {
    if (mixer == "none") return t;
    return mixer == "depthwise" ? child<nn::Depthwise>(block, "depthwise")(t) : block->context_pool()(t);
  };
  if (placement == "before_attention") {
    const auto middle = x + attention(mix(norm(x, "norm1")), rotation);
    return middle + feedforward(norm(middle, "norm2"));
  }
  if (placement == "after_block") {
    const auto middle = x + attention(norm(x, "norm1"), rotation);
    return mix(middle + feedforward(norm(middle, "norm2")));
  }
  const auto middle = x + mix(attention(norm(x, "norm1"), rotation));
  return middle + feedforward(norm(middle, "norm2"));
}

class EveryBlock : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  static TransformerBlockOptions options(bool causal) {
    return options_of(std::get<0>(GetParam()), std::get<1>(GetParam()), causal);
  }
};

TEST_P(EveryBlock, IsItsFormulaForwardAndBackward) {
  for (const bool causal : {false, true}) {
    auto block = make(options(causal));
    const auto x = random({2, 13, kFeatures}).requires_grad_();
    const auto weight = random({2, 13, kFeatures});
    const auto y = block(x, turns(x)), expected = formula(block, x, turns(x));
    EXPECT_LT(difference(y, expected), 1e-12);
    auto inputs = block->parameters();
    inputs.push_back(x);
    const auto got = torch::autograd::grad({(y * weight).sum()}, inputs);
    const auto want = torch::autograd::grad({(expected * weight).sum()}, inputs);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_LT(difference(got[i], want[i]), 1e-11);
  }
}

TEST_P(EveryBlock, StepsEqualTheWhole) {
  for (const auto type : {torch::kFloat64, torch::kFloat32}) {
    auto block = make(options(true), type);
    const torch::NoGradGuard no_grad;
    const auto x = random({2, 97, kFeatures}, type);
    const auto whole = block(x, turns(x));
    BlockCache cache;
    int64_t first = 0;
    for (const int64_t count : {1, 1, 7, 1, 70, 1, 16}) {
      const auto part = x.narrow(1, first, count);
      const auto y = block->step(part, cache, turns(part, first));
      EXPECT_LT(difference(y, whole.narrow(1, first, count)), type == torch::kFloat64 ? 1e-12 : 5e-5);
      first += count;
    }
    EXPECT_EQ(first, x.size(1));
  }
}

TEST_P(EveryBlock, LeaksNoBitOfTheFuture) {
  auto block = make(options(true), torch::kFloat32);
  expect_no_bit_of_the_future([&](const torch::Tensor& x) { return block(x, turns(x)); }, 77, kFeatures, {1, 17, 76});
}

TEST_P(EveryBlock, LeavesPaddingAlone) {
  for (const bool causal : {false, true}) {
    auto block = make(options(causal));
    const std::vector<int64_t> lengths{9, 4, 1};
    auto x = random({3, 9, kFeatures});
    std::vector<torch::Tensor> alone;
    for (int64_t b = 0; b < 3; ++b) {
      const auto row = x.narrow(0, b, 1).slice(1, 0, lengths[b]);
      alone.push_back(block(row.clone(), turns(row))[0]);
    }
    const auto mask = there(torch::arange(9).unsqueeze(0) < torch::tensor(lengths).unsqueeze(1));
    x.masked_fill_(mask.logical_not().unsqueeze(-1), NAN);
    x.requires_grad_();
    const auto by_mask = block(x, turns(x), mask), by_lengths = block(x, turns(x), there(torch::tensor(lengths)));
    std::vector<torch::Tensor> live;
    for (int64_t b = 0; b < 3; ++b) {
      live.push_back(by_mask[b].slice(0, 0, lengths[b]));
      EXPECT_LT(difference(live.back(), alone[b]), 1e-12);
      EXPECT_TRUE(torch::equal(live.back(), by_lengths[b].slice(0, 0, lengths[b])));
    }
    torch::cat(live).sum().backward();
    EXPECT_TRUE((x.grad().masked_select(mask.logical_not().unsqueeze(-1)) == 0).all().item<bool>());
    for (const auto& item : block->named_parameters()) {
      EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
    }
  }
}

TEST_P(EveryBlock, DoesNotDependOnTheRestOfTheBatch) {
  auto block = make(options(true));
  const auto x = random({4, 12, kFeatures});
  const auto y = block(x, turns(x));
  const auto order = there(torch::tensor({2, 0, 3, 1}));
  EXPECT_LT(difference(block(x.index_select(0, order), turns(x)), y.index_select(0, order)), 1e-12);
  EXPECT_LT(difference(block(x.narrow(0, 2, 1), turns(x)), y.narrow(0, 2, 1)), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(All, EveryBlock,
                         ::testing::Combine(::testing::Values("none", "context_pool", "depthwise"),
                                            ::testing::Values("after_attention", "after_block", "before_attention")),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

int64_t parameters_of(const torch::nn::Module& module) {
  const auto all = module.parameters();
  return std::accumulate(all.begin(), all.end(), int64_t{0}, [](int64_t n, const auto& p) { return n + p.numel(); });
}

TEST(TransformerBlock, HasTheParametersItShould) {
  const auto with = [](const std::string& mixer) {
    return TransformerBlock(
        TransformerBlockOptions{.causal = true, .mixer = mixer, .pool = {.reference_length = 2048}});
  };
  const auto plain = parameters_of(*with("none"));
  EXPECT_EQ(plain, 4 * 512 + (512 * 3 * 512 + 3 * 512) + (512 * 512 + 512) + (2 * 512 * 2048 + 2048 + 512));
  EXPECT_EQ(parameters_of(*with("context_pool")) - plain, 98'754);
  EXPECT_EQ(parameters_of(*with("depthwise")) - plain, 512 * 15 + 512);
  const auto names = with("depthwise")->named_parameters().keys();
  EXPECT_EQ(names,
            (std::vector<std::string>{"norm1.weight", "norm1.bias", "attention.qkv.weight", "attention.qkv.bias",
                                      "attention.out.weight", "attention.out.bias", "depthwise.weight",
                                      "depthwise.bias", "norm2.weight", "norm2.bias", "feedforward.up.weight",
                                      "feedforward.up.bias", "feedforward.down.weight", "feedforward.down.bias"}));
  EXPECT_TRUE(with("context_pool")->named_parameters().contains("context_pool.predictor.conv1.weight"));
}

TEST(TransformerBlock, DropsInTrainingOnly) {
  auto options = options_of("context_pool", "after_attention", true);
  options.dropout = 0.3;
  auto block = make(options);
  const auto x = random({1, 9, kFeatures});
  EXPECT_FALSE(torch::equal(block(x), block(x)));
  block->eval();
  EXPECT_TRUE(torch::equal(block(x), block(x)));
  EXPECT_LT(difference(block(x), formula(block, x, {})), 1e-12);
}

TEST(TransformerBlock, RefusesWhatItDoesNotKnow) {
  try {
    TransformerBlock block(options_of("contextpool", "after_attention", true));
    FAIL() << "a mixer that does not exist was accepted";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what_without_backtrace()).find("did you mean \"context_pool\""), std::string::npos);
  }
  EXPECT_THROW(TransformerBlock(options_of("none", "behind", true)), c10::Error);
  EXPECT_THROW(TransformerBlock(options_of("none", "after_block", true))->forward(torch::zeros({2, 3, 5})), c10::Error);
}

// y_ic = b_c + sum_k w_ck x_(i - left + k)c
TEST(Depthwise, IsItsFormula) {
  for (const bool causal : {false, true}) {
    nn::Depthwise depthwise(nn::DepthwiseOptions{.features = 3, .taps = 5, .causal = causal});
    depthwise->to(device(), torch::kFloat64);
    const auto x = random({2, 9, 3}).requires_grad_(), weight = random({2, 9, 3});
    const int64_t left = causal ? 4 : 2;
    std::vector<torch::Tensor> rows;
    for (int64_t i = 0; i < 9; ++i) {
      auto row = depthwise->bias.unsqueeze(0).expand({2, 3});
      for (int64_t k = 0; k < 5; ++k) {
        const auto j = i - left + k;
        if (j >= 0 && j < 9) row = row + depthwise->weight.select(2, k).squeeze(1) * x.select(1, j);
      }
      rows.push_back(row);
    }
    const auto expected = torch::stack(rows, 1), y = depthwise(x);
    EXPECT_LT(difference(y, expected), 1e-14);
    const std::vector<torch::Tensor> inputs{x, depthwise->weight, depthwise->bias};
    const auto got = torch::autograd::grad({y}, inputs, {weight}),
               want = torch::autograd::grad({expected}, inputs, {weight});
    for (std::size_t i = 0; i < inputs.size(); ++i) EXPECT_LT(difference(got[i], want[i]), 1e-13);
  }
  EXPECT_THROW(nn::Depthwise(nn::DepthwiseOptions{.features = 3, .taps = 4, .causal = false}), c10::Error);
}

}  // namespace
}  // namespace contextpool::testing
