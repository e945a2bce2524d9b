// Every mixer against its formula in float64, spelt out token by token; padding, steps, causality, and how they start.
#include "contextpool/nn/mixer.h"

#include <cmath>

#include "contextpool/nn/block.h"
#include "contextpool/nn/depthwise.h"
#include "expect.h"
#include "mixer_cases.h"
#include "steps.h"

namespace contextpool::testing {
namespace {

using torch::Tensor;

std::vector<MixerCase> causal_cases() { return mixer_cases(1, /*causal=*/true); }

// Features last, and back.
Tensor last(const Tensor& x, int64_t dims) { return dims == 1 ? x : x.movedim(1, -1); }
Tensor back(const Tensor& x, int64_t dims) { return dims == 1 ? x : x.movedim(-1, 1); }

// sum_k w_k(i) x_(i - left + k) with coefficients(k) [features] or [B, N.., features]; x features last, 0 outside.
template <typename Coefficients>
Tensor taps_formula(const nn::MixerOptions& o, int64_t taps, const Tensor& x, Coefficients coefficients) {
  const auto left = o.causal ? taps - 1 : taps / 2;
  auto sum = torch::zeros_like(x);
  for (int64_t k = 0; k < (o.dims == 1 ? taps : taps * taps); ++k) {
    const auto shift = [&](const Tensor& t, int64_t dim, int64_t by) {  // t_(i + by)
      const auto size = t.size(dim);
      const auto at = torch::arange(size, torch::TensorOptions().dtype(torch::kLong).device(t.device())) + by;
      auto shape = std::vector<int64_t>(t.dim(), 1);
      shape[dim] = size;
      const auto inside = ((at >= 0) & (at < size)).view(shape);
      return torch::where(inside, t.index_select(dim, at.clamp(0, size - 1)), torch::zeros_like(t));
    };
    const auto moved = o.dims == 1 ? shift(x, 1, k - left) : shift(shift(x, 1, k / taps - left), 2, k % taps - left);
    sum = sum + coefficients(k) * moved;
  }
  return sum;
}

Tensor formula(const nn::Mixer& mixer, const nn::MixerOptions& o, const Tensor& x, const Tensor& context) {
  if (o.kind == "none") return x;
  const auto p = mixer->named_parameters();
  const auto rows = last(x, o.dims), h = last(context, o.dims);
  const auto own = [&](int64_t rows_, int64_t centred) {
    return o.taps > 0 ? o.taps : o.dims == 2 ? 3 : o.causal ? rows_ : centred;
  };
  const auto convolution = [&](const std::string& name, int64_t taps) {
    return taps_formula(o, taps, rows, [&](int64_t k) { return p[name].flatten(1).select(1, k); });
  };
  if (o.kind == "canon") return back(rows + convolution("weight", own(4, 3)), o.dims);
  if (o.kind == "dynamic") {
    const auto coefficients = [&](int64_t k) {
      const auto weight = p["weight"].flatten(1).select(1, k);
      if (o.heads > 0) {
        const auto matrix = p["coefficients.weight"].slice(0, k * o.heads, (k + 1) * o.heads);
        return weight + torch::matmul(h, matrix.t()).repeat_interleave(kMixed / o.heads, -1);
      }
      const auto up = p["coefficients.up.weight"].slice(0, k * kMixed, (k + 1) * kMixed);
      return weight + torch::matmul(torch::matmul(h, p["coefficients.down.weight"].t()), up.t());
    };
    return back(rows + taps_formula(o, own(4, 3), rows, coefficients), o.dims);
  }
  Tensor mixed, beside = torch::zeros_like(rows);
  if (o.kind == "depthwise") {
    mixed = convolution("weight", o.dims == 1 ? 5 : 3) + p["bias"];
  } else {
    auto plain = o;
    plain.residual = "none";
    plain.taps = 0;
    auto pool = nn::make_mixer(plain);
    pool->to(device(), torch::kFloat64);
    auto into = pool->named_parameters();
    const torch::NoGradGuard no_grad;
    for (auto& item : into) item.value().copy_(p[item.key()]);
    mixed = last(pool->forward(x), o.dims);
    if (o.taps > 0) beside = convolution("taps.weight", o.taps);
  }
  if (o.residual == "plain") mixed = rows + mixed;
  if (o.residual == "scale") mixed = rows + p["scale"] * mixed;
  if (o.residual == "gated") {
    const auto gate = torch::matmul(torch::matmul(h, p["gate.down.weight"].t()), p["gate.up.weight"].t());
    mixed = rows + (p["scale"] + gate) * mixed;
  }
  return back(mixed + beside, o.dims);
}

TEST(Mixers, AreTheirFormulas) {
  for (const auto& [name, options] : all_mixer_cases()) {
    SCOPED_TRACE(name);
    auto mixer = random_mixer(options);
    const auto x = random_tokens_of(options, kMixed), context = random_tokens_of(options, kContext);
    EXPECT_LT(difference(mixer(x, nn::Padding(), context), formula(mixer, options, x, context)), 1e-12);
    // The windows are those of the pool inside, the output the same.
    const auto [y, windows] = mixer->forward_with_windows(x, {}, context);
    EXPECT_LT(difference(y, mixer(x, nn::Padding(), context)), 1e-14);
    EXPECT_EQ(windows.sigma.defined(), options.kind == "context_pool");
  }
}

TEST(Mixers, HaveTheGradientsOfTheirValues) {
  torch::manual_seed(1);
  for (const auto& [name, options] : all_mixer_cases()) {
    SCOPED_TRACE(name);
    auto mixer = random_mixer(options);
    const auto x = random_tokens_of(options, kMixed).requires_grad_();
    const auto context = random_tokens_of(options, kContext).requires_grad_();
    const auto weight = random_tokens_of(options, kMixed);
    std::vector<Tensor> inputs{x};
    for (const auto& parameter : mixer->parameters()) inputs.push_back(parameter);
    if (MixerCase{name, options}.uses_context()) inputs.push_back(context);
    const auto value = [&] { return (mixer(x, nn::Padding(), context) * weight).sum(); };
    const auto got = torch::autograd::grad({value()}, inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) {  // along a random direction, by central differences
      const torch::NoGradGuard no_grad;
      const auto direction = random(inputs[i].sizes());
      const double step = 1e-5;
      inputs[i].add_(direction, step);
      const auto above = value().item<double>();
      inputs[i].sub_(direction, 2 * step);
      const auto below = value().item<double>();
      inputs[i].add_(direction, step);
      const auto expected = (above - below) / (2 * step), slope = (got[i] * direction).sum().item<double>();
      EXPECT_NEAR(slope, expected, 1e-4 * std::max(1.0, std::abs(expected))) << "input " << i;
    }
  }
}

TEST(Mixers, LeavePaddingAlone) {
  for (const auto& [name, options] : all_mixer_cases()) {
    if (options.kind == "none") continue;
    SCOPED_TRACE(name);
    auto mixer = random_mixer(options);
    auto x = random_tokens_of(options, kMixed), context = random_tokens_of(options, kContext);
    const auto sizes = options.dims == 1 ? std::vector<int64_t>{2, 13} : std::vector<int64_t>{2, 5, 6};
    auto mask = there(torch::ones(sizes, torch::kBool));
    mask.slice(1, 3, 13).select(0, 1).fill_(false);
    const auto cut = [&](const Tensor& t) { return t.slice(0, 1).slice(options.dims == 1 ? 1 : 2, 0, 3).contiguous(); };
    const auto alone = mixer(cut(x), nn::Padding(), cut(context));
    const auto padded = mask.logical_not().unsqueeze(options.dims == 1 ? -1 : 1);
    x.masked_fill_(padded, NAN);
    context.masked_fill_(padded, NAN);
    x.requires_grad_();
    const auto y = mixer(x, nn::Padding(mask), context);
    // Sizes of maps depend on the map's own height and width, which a mask keeps as they are.
    EXPECT_LT(difference(cut(y), alone), 1e-12);
    cut(y).square().sum().backward();
    EXPECT_TRUE(x.grad().masked_select(padded).eq(0).all().item<bool>());
    for (const auto& item : mixer->named_parameters()) {
      EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
    }
  }
}

TEST(Mixers, LeakNoBitOfTheFuture) {
  for (const auto& [name, options] : causal_cases()) {
    SCOPED_TRACE(name);
    auto own = options;
    own.context_features = 0;  // the context is x, so it too is cut
    auto mixer = random_mixer(own, torch::kFloat32);
    expect_no_bit_of_the_future([&](const Tensor& x) { return mixer(x); }, 77, kMixed, {1, 17, 76});
  }
}

TEST(Mixers, HaveSteps) {
  for (const auto& [name, options] : causal_cases()) {
    if (options.kind == "none") continue;
    SCOPED_TRACE(name);
    auto own = options;
    own.context_features = 0;
    auto mixer = random_mixer(own);
    const auto x = random({4, 30, kMixed}).requires_grad_();
    auto leaves = mixer->parameters();
    leaves.push_back(x);
    expect_steps<nn::MixerCache>(
        {.forward = [&](const Tensor& v, const nn::Padding& p) { return mixer(v, p); },
         .step = [&](const Tensor& v, nn::MixerCache& c, const nn::Padding& p) { return mixer->step(v, c, p); }},
        x, leaves);
  }
}

TEST(Mixers, HaveNoStepsUnlessCausal) {
  for (const int64_t dims : {1, 2}) {
    for (const auto& [name, options] : mixer_cases(dims, false)) {
      if (options.kind == "none") continue;
      auto mixer = random_mixer(options);
      nn::MixerCache cache;
      EXPECT_THROW(mixer->step(random_tokens_of(options, kMixed), cache), c10::Error) << name;
    }
  }
}

// As a model does it: everything normal, then what the mixers need.
nn::Mixer started(const nn::MixerOptions& options) {
  auto mixer = nn::make_mixer(options);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : mixer->parameters()) parameter.normal_(0, 7);
  mixer->finish_initialisation();
  return mixer;
}

double largest(const Tensor& t) { return t.abs().max().item<double>(); }

TEST(Mixers, KeepTheirStartInAModelThatDrawsItsOwn) {
  auto options = nn::MixerOptions{.kind = "canon", .features = 64, .causal = true};
  const auto canon = started(options)->named_parameters();
  EXPECT_EQ(canon.keys(), (std::vector<std::string>{"weight"}));
  EXPECT_EQ(canon["weight"].sizes(), (std::vector<int64_t>{64, 1, 4}));
  EXPECT_LE(largest(canon["weight"]), 0.5);
  EXPECT_NEAR(canon["weight"].std().item<double>(), 0.5 / std::sqrt(3), 0.05);

  options.kind = "dynamic";
  const auto dynamic = started(options)->named_parameters();
  EXPECT_LE(largest(dynamic["weight"]), 0.5);
  EXPECT_EQ(largest(dynamic["coefficients.up.weight"]), 0);
  EXPECT_GT(largest(dynamic["coefficients.down.weight"]), 0.05);
  EXPECT_LE(largest(dynamic["coefficients.down.weight"]), 0.125);
  EXPECT_EQ(dynamic["coefficients.up.weight"].sizes(), (std::vector<int64_t>{4 * 64, 15}));
  options.heads = 8;
  EXPECT_EQ(largest(started(options)->named_parameters()["coefficients.weight"]), 0);

  options.kind = "context_pool";
  options.residual = "gated";
  options.taps = 4;
  options.pool.reference_length = 100;
  auto pool = started(options);
  const auto p = pool->named_parameters();
  EXPECT_LE(largest(p["scale"]), 0.5);
  EXPECT_LE(largest(p["taps.weight"]), 0.5);
  EXPECT_EQ(largest(p["gate.up.weight"]), 0);
  EXPECT_GT(largest(p["predictor.conv1.weight"]), 7) << "the model's own draw stays";
  const auto windows = pool->forward_with_windows(torch::randn({2, 30, 64})).second;
  EXPECT_LT(largest(windows.sigma - options.pool.initial_sigma), 1e-4);

  options = {.kind = "depthwise", .features = 64, .residual = "scale"};
  const auto depthwise = started(options)->named_parameters();
  EXPECT_GT(largest(depthwise["weight"]), 7) << "the model's own draw stays";
  EXPECT_LE(largest(depthwise["scale"]), 0.5);
}

TEST(Mixers, DynamicStartsAsCanon) {
  for (const int64_t heads : {0, 4}) {
    auto options = mixer_options("dynamic", 1, true);
    options.heads = heads;
    torch::manual_seed(5);
    auto dynamic = nn::make_mixer(options), canon = nn::make_mixer(mixer_options("canon", 1, true));
    const torch::NoGradGuard no_grad;
    canon->named_parameters()["weight"].copy_(dynamic->named_parameters()["weight"]);
    const auto x = torch::randn({2, 9, kMixed}), context = torch::randn({2, 9, kContext});
    EXPECT_LT(difference(dynamic(x, nn::Padding(), context), canon(x)), 1e-6);
  }
}

template <typename F>
std::string said(F f) {
  try {
    f();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "nothing";
}

TEST(Mixers, SayWhatTheyDoNotKnow) {
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const auto make = [](nn::MixerOptions o) { return said([&] { nn::make_mixer(o); }); };
  expect(make({.kind = "cannon", .features = 8}), "did you mean \"canon\"");
  expect(make({.kind = "canon", .features = 8, .causal = true, .dims = 2}), "cannot be causal");
  expect(make({.kind = "canon", .features = 8, .dims = 3}), "dims must be 1 (rows) or 2 (maps), but is 3");
  expect(make({.kind = "canon", .features = 8, .taps = 4}), "taps must be odd");
  expect(make({.kind = "canon", .features = 8, .residual = "gated"}), "residual is plain");
  expect(make({.kind = "depthwise", .features = 8, .residual = "gate"}), "did you mean \"gated\"");
  expect(make({.kind = "dynamic", .features = 8, .rank = 0}), "rank must be positive, but is 0");
  expect(make({.kind = "dynamic", .features = 8, .heads = 3}), "heads must divide the 8 features");
  expect(make({.kind = "dynamic", .features = 0}), "features must be positive, but are 0");
  auto dynamic = random_mixer(mixer_options("dynamic", 1, true));
  expect(said([&] { dynamic(random({2, 9, kMixed})); }), "(x itself, since none was given)");
  expect(said([&] { dynamic(random({2, 9, 3})); }), "x must be [batch, tokens, 8]");
}

TEST(Places, AreReadFromAText) {
  using Places = std::map<char, std::string>;
  const auto read = [](const std::string& text) { return nn::parse_places("test", text, "ABOCDE"); };
  EXPECT_EQ(read("A=canon,C=canon,O=context_pool"), (Places{{'A', "canon"}, {'C', "canon"}, {'O', "context_pool"}}));
  EXPECT_EQ(read("AC=canon, O=context_pool,B=none"), (Places{{'A', "canon"}, {'C', "canon"}, {'O', "context_pool"}}));
  EXPECT_EQ(read(""), Places{});
  const auto expect = [&](const std::string& text, const std::string& part) {
    const auto message = said([&] { read(text); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect("A=cannon", "did you mean \"canon\"");
  expect("X=canon", "the place \"X\", but the places are ABOCDE");
  expect("AA=canon", "the place A twice");
  expect("canon", "must read PLACE=MIXER");
  expect("=canon", "must read PLACE=MIXER");
  expect("A=", "a mixer of mix is \"\"");
}

nn::TransformerBlockOptions block_options(const std::string& places, bool causal) {
  return {.features = kMixed,
          .heads = 2,
          .feedforward = 12,
          .causal = causal,
          .taps = 5,
          .mix = {.places = places, .taps = causal ? 4 : 3, .residual = "gated", .rank = 3, .pool_taps = 3},
          .pool = {.reference_length = 20, .hidden = 5}};
}

nn::TransformerBlock random_block(const nn::TransformerBlockOptions& options) {
  nn::TransformerBlock block(options);
  block->to(device(), torch::kFloat64);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : block->parameters()) parameter.copy_(random(parameter.sizes()) * 0.3);
  return block;
}

// The block, its places spelt out.
Tensor formula(nn::TransformerBlock& block, const Tensor& x) {
  const auto p = block->named_parameters();
  const auto norm = [&](const Tensor& t, const std::string& name) {
    return torch::layer_norm(t, {kMixed}, p[name + ".weight"], p[name + ".bias"]);
  };
  const auto at = [&](char place, const Tensor& t, const Tensor& context = {}) {
    auto mixer = block->mixer(place);
    return mixer ? mixer->forward(t, {}, context) : t;
  };
  const auto linear = [&](const Tensor& t, const std::string& name) {
    return torch::linear(t, p[name + ".weight"], p[name + ".bias"]);
  };
  const auto h = at('A', norm(x, "norm1"));
  const auto qkv = at('B', linear(h, "attention.qkv"), h).unflatten(2, {3, 2, kMixed / 2}).permute({2, 0, 3, 1, 4});
  auto scores = torch::matmul(qkv[0], qkv[1].transpose(-1, -2)) / std::sqrt(kMixed / 2.0);
  if (block->options().causal) {
    const auto future = torch::ones_like(scores[0][0], torch::kBool).triu(1);
    scores = scores.masked_fill(future, -INFINITY);
  }
  const auto attended = torch::matmul(scores.softmax(-1), qkv[2]).transpose(1, 2).flatten(2);
  const auto middle = x + at('O', linear(attended, "attention.out"), h);
  const auto g = at('C', norm(middle, "norm2"));
  return at('E', middle + linear(torch::gelu(at('D', linear(g, "feedforward.up"), g)), "feedforward.down"));
}

const std::vector<std::string>& place_sets() {
  static const std::vector<std::string> sets{"A=canon",
                                             "B=canon",
                                             "O=dynamic",
                                             "C=dynamic",
                                             "D=dynamic",
                                             "E=canon",
                                             "AC=dynamic",
                                             "ABCD=canon",
                                             "B=context_pool",
                                             "D=context_pool",
                                             "AC=canon,O=context_pool",
                                             "B=dynamic",
                                             "ABOCDE=dynamic",
                                             "AC=context_pool",
                                             "ABOCDE=depthwise"};
  return sets;
}

TEST(Places, OfABlockAreWhereTheFormulaHasThem) {
  for (const auto& places : place_sets()) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(places + (causal ? " causal" : " centred"));
      auto block = random_block(block_options(places, causal));
      const auto x = random({2, 13, kMixed});
      EXPECT_LT(difference(block(x), formula(block, x)), 1e-12);
      auto bare = block_options("", causal);
      EXPECT_GT(block->parameters().size(), random_block(bare)->parameters().size());
    }
  }
}

TEST(Places, OfABlockHaveSteps) {
  for (const auto& places : place_sets()) {
    SCOPED_TRACE(places);
    auto block = random_block(block_options(places, true));
    block->eval();
    const auto x = random({4, 30, kMixed}).requires_grad_();
    auto leaves = block->parameters();
    leaves.push_back(x);
    expect_steps<nn::BlockCache>(
        {.forward = [&](const Tensor& v, const nn::Padding& p) { return block(v, nn::Rotation(), p); },
         .step = [&](const Tensor& v, nn::BlockCache& c, const nn::Padding& p) { return block->step(v, c, {}, p); }},
        x, leaves);
  }
}

TEST(Places, NameTheParametersOfABlock) {
  const auto names = [](const std::string& places) {
    std::vector<std::string> mixers;
    auto options = block_options(places, true);
    options.mix.residual = "none";
    options.mix.pool_taps = 0;
    for (const auto& key : nn::TransformerBlock(options)->named_parameters().keys()) {
      if (!key.starts_with("norm") && !key.starts_with("attention") && !key.starts_with("feedforward")) {
        mixers.push_back(key);
      }
    }
    return mixers;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("O=depthwise"), (Names{"depthwise.weight", "depthwise.bias"}));
  EXPECT_EQ(names("A=canon"), (Names{"canon.weight"}));
  EXPECT_EQ(names("B=dynamic"),
            (Names{"dynamic.weight", "dynamic.coefficients.down.weight", "dynamic.coefficients.up.weight"}));
  EXPECT_EQ(names("E=context_pool"),
            (Names{"context_pool.predictor.conv1.weight", "context_pool.predictor.conv1.bias",
                   "context_pool.predictor.conv2.weight", "context_pool.predictor.conv2.bias"}));
  EXPECT_EQ(names("C=canon,O=depthwise,A=canon"),
            (Names{"mixers.A.weight", "mixers.O.weight", "mixers.O.bias", "mixers.C.weight"}));
}

TEST(Places, IncludeThePlacementsOfOld) {
  for (const auto& [placement, place] :
       {std::pair{"before_attention", "A"}, std::pair{"after_attention", "O"}, std::pair{"after_block", "E"}}) {
    for (const std::string mixer : {"context_pool", "depthwise"}) {
      auto old = block_options("", true), now = block_options(place + ("=" + mixer), true);
      old.mixer = mixer;
      old.placement = placement;
      torch::manual_seed(4);
      nn::TransformerBlock first(old);
      torch::manual_seed(4);
      nn::TransformerBlock second(now);
      EXPECT_EQ(first->named_parameters().keys(), second->named_parameters().keys());
      const auto x = torch::randn({2, 9, kMixed});
      EXPECT_TRUE(torch::equal(first(x), second(x)));
    }
  }
}

}  // namespace
}  // namespace contextpool::testing
