// Steps of every module, by what steps.h says of them, and what padding may be made of.
#include "steps.h"

#include "context_pool_reference.h"
#include "contextpool/nn/block.h"

namespace contextpool::testing {
namespace {

using torch::Tensor;

constexpr int64_t kFeatures = 8, kHeads = 2;

template <typename Module>
std::vector<Tensor> leaves_of(Module& module, const Tensor& x) {
  auto leaves = module->parameters();
  leaves.push_back(x);
  return leaves;
}

template <typename Module>
Module prepared(Module module) {
  torch::manual_seed(3);
  module->to(device(), torch::kFloat64);
  module->eval();
  for (auto& parameter : module->parameters()) parameter.data().normal_(0, 0.4);
  return module;
}

Tensor rows() { return random({4, 30, kFeatures}).requires_grad_(); }

template <typename Module, typename Cache>
void expect_steps_of(Module module, Cache) {
  const auto x = rows();
  expect_steps<Cache>({.forward = [&](const Tensor& v, const nn::Padding& p) { return module(v, p); },
                       .step = [&](const Tensor& v, Cache& c, const nn::Padding& p) { return module->step(v, c, p); }},
                      x, leaves_of(module, x));
}

TEST(Steps, OfContextPool) {
  for (const auto* locality : {"gaussian", "none", "fixed_window", "adaptive_window", "random_sparse"}) {
    for (const auto& options : every_option<nn::ContextPoolOptions>(kFeatures, locality, /*causal=*/true)) {
      SCOPED_TRACE(words(options));
      expect_steps_of(prepared(nn::ContextPool1d(options)), nn::ContextPoolCache());
    }
  }
}

TEST(Steps, OfDepthwise) {
  expect_steps_of(prepared(nn::Depthwise(nn::DepthwiseOptions{.features = kFeatures, .taps = 5, .causal = true})),
                  nn::DepthwiseCache());
}

// Attention and blocks take a rotation too; theirs is that of no positions here.
template <typename Module, typename Cache>
void expect_turned_steps_of(Module module, Cache) {
  const auto x = rows();
  expect_steps<Cache>(
      {.forward = [&](const Tensor& v, const nn::Padding& p) { return module(v, nn::Rotation(), p); },
       .step = [&](const Tensor& v, Cache& c, const nn::Padding& p) { return module->step(v, c, {}, p); }},
      x, leaves_of(module, x));
}

TEST(Steps, OfAttention) {
  for (const auto& reach : {nn::Reach{}, nn::Reach{.kind = "window", .window = 6, .dilation = 1, .dilated_heads = 1},
                            nn::Reach{.kind = "adaptive_span", .span_limit = 12}}) {
    SCOPED_TRACE(reach.kind);
    expect_turned_steps_of(prepared(nn::Attention(nn::AttentionOptions{
                               .features = kFeatures, .heads = kHeads, .causal = true, .reach = reach})),
                           nn::AttentionCache());
  }
}

TEST(Steps, OfTransformerBlock) {
  for (const auto* mixer : {"none", "context_pool", "depthwise"}) {
    for (const auto* placement : {"after_attention", "after_block", "before_attention"}) {
      SCOPED_TRACE(std::string(mixer) + " " + placement);
      const nn::TransformerBlockOptions options{.features = kFeatures,
                                                .heads = kHeads,
                                                .feedforward = 16,
                                                .causal = true,
                                                .mixer = mixer,
                                                .placement = placement,
                                                .taps = 5,
                                                .pool = {.reference_length = 20, .hidden = 5}};
      expect_turned_steps_of(prepared(nn::TransformerBlock(options)), nn::BlockCache());
    }
  }
}

TEST(Positions, OfPaddedRowsAreThoseOfTheRowAlone) {
  const auto x = random({2, 5, kFeatures});
  const auto at = there(torch::tensor({{0, 1, 2, 3, 4}, {0, 0, 0, 1, 2}}));
  const auto real = there(torch::tensor({{1, 1, 1, 1, 1}, {0, 0, 1, 1, 1}})).to(torch::kBool);
  EXPECT_TRUE(torch::equal(nn::positions_of(real), at));
  for (const auto* kind : {"learned", "sinusoidal", "rotary"}) {
    auto positions = prepared(
        nn::Positions(nn::PositionsOptions{.kind = kind, .features = kFeatures, .heads = kHeads, .length = 9}));
    const auto alone = x.slice(0, 1).slice(1, 2);
    EXPECT_LT(difference(positions->add(x, 0, at)[1].slice(0, 2), positions->add(alone)[0]), 1e-13) << kind;
    if (std::string(kind) != "rotary") continue;
    const auto head = [](const Tensor& v) { return v.slice(2, 0, kFeatures / kHeads); };
    const auto got = nn::rotate(head(x), positions->rotation(x, 0, at))[1].slice(0, 2);
    EXPECT_LT(difference(got, nn::rotate(head(alone), positions->rotation(alone))[0]), 1e-13);
  }
}

TEST(Padding, IsLengthsOrAMaskOfEitherPolarity) {
  const auto mask = torch::arange(5).unsqueeze(0) < torch::tensor({{5}, {2}});
  const auto of = [](const nn::Padding& padding) { return padding.mask({2, 5}, torch::kCPU); };
  EXPECT_TRUE(torch::equal(of(mask), mask));
  EXPECT_TRUE(torch::equal(of(mask.to(torch::kLong)), mask));
  EXPECT_TRUE(torch::equal(of(torch::tensor({5, 2})), mask));
  EXPECT_TRUE(torch::equal(of(nn::Padding::key_padding_mask(mask.logical_not())), mask));
  EXPECT_TRUE(torch::equal(of(nn::Padding::key_padding_mask(mask.logical_not().to(torch::kByte))), mask));
  EXPECT_FALSE(of({}).defined());
  for (const auto& wrong : {torch::tensor({5, 6}), torch::tensor({-1, 2}), torch::tensor({5}), torch::ones({2, 5}),
                            mask.slice(1, 0, 4), mask[0]}) {
    EXPECT_THROW(of(wrong), c10::ValueError) << wrong;
  }
  EXPECT_THROW(nn::Padding::key_padding_mask(torch::tensor({5, 2})), c10::ValueError);
}

// What a c10::Error says to a call.
template <typename F>
std::string said(F f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing";
}

TEST(ContextPool, SaysWhatToDoAboutInputsItCannotTake) {
  nn::ContextPool1d row(8);
  nn::ContextPool2d map(nn::ContextPool2dOptions(8));
  EXPECT_NE(said([&] { row(torch::zeros({2, 8, 5})); }).find("x.transpose(1, 2)"), std::string::npos);
  EXPECT_NE(said([&] { map(torch::zeros({2, 5, 6, 8})); }).find("x.permute({0, 3, 1, 2})"), std::string::npos);
  const auto half = torch::zeros({2, 5, 8}, torch::kBFloat16);
  EXPECT_NE(said([&] { row(half); }).find("x is BFloat16, but the parameters are Float"), std::string::npos);
  EXPECT_NE(said([&] {
              map(torch::zeros({2, 8, 5, 5}, torch::kBFloat16));
            }).find("or use autocast"),
            std::string::npos);
}

}  // namespace
}  // namespace contextpool::testing
