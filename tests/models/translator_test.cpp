// The translator end to end: its formula, no bit of the future, padding and the rest of the batch, steps and caches,
// beam search over it, its start, its named models and what they cost.
#include "contextpool/models/translator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "../nn/expect.h"
#include "contextpool/models/translate.h"
#include "contextpool/models/translators.h"
#include "translator_cases.h"

namespace contextpool::testing {
namespace {

using models::BeamSearchOptions;
using models::EncodedSource;
using models::Translator;
using models::TranslatorOptions;
using torch::Tensor;

Tensor lengths() { return torch::tensor({9, 4, 1}); }

class EveryTranslator : public ::testing::TestWithParam<TranslatorCase> {
 protected:
  void SetUp() override { torch::manual_seed(7); }
};

TEST_P(EveryTranslator, PredictsWithoutABitOfTheFuture) {
  const torch::NoGradGuard no_grad;
  auto model = random_translator(GetParam().options);
  const auto source = random_symbols(3, 9), target = random_symbols(3, 20);
  const auto logits = model->forward(source, lengths(), target);
  for (const int64_t t : {1, 10, 19}) {
    auto changed = target.clone();
    changed.slice(1, t) = (changed.slice(1, t) + 11) % kSymbols;
    const auto other = model->forward(source, lengths(), changed);
    EXPECT_TRUE(torch::equal(other.slice(1, 0, t), logits.slice(1, 0, t))) << t;
    EXPECT_FALSE(torch::equal(other.select(1, t), logits.select(1, t)));
  }
}

TEST_P(EveryTranslator, DoesNotDependOnPaddingAndTheRestOfTheBatch) {
  const torch::NoGradGuard no_grad;
  auto model = random_translator(GetParam().options, torch::kFloat64);
  const auto source = random_symbols(3, 9), target = random_symbols(3, 12);
  auto hostile = source.clone();
  for (int64_t b = 0; b < 3; ++b) hostile[b].slice(0, lengths()[b].item<int64_t>()) = -5;  // not a symbol
  const auto logits = model->forward(hostile, lengths(), target);
  for (int64_t b = 0; b < 3; ++b) {
    const auto length = lengths()[b].item<int64_t>();
    const auto alone = model->forward(source.narrow(0, b, 1).narrow(1, 0, length), {}, target.narrow(0, b, 1));
    EXPECT_LT(difference(logits.narrow(0, b, 1), alone), 1e-11) << b;
    const auto left = torch::cat({random_symbols(1, 3), source.narrow(0, b, 1).narrow(1, 0, length)}, 1);
    const auto real = there(torch::arange(length + 3).unsqueeze(0) >= 3);
    EXPECT_LT(difference(model->forward(left, real, target.narrow(0, b, 1)), alone), 1e-11) << "padded in front, " << b;
  }
  auto changed = source.clone();
  changed[0][0] = (changed[0][0] + 1) % kSymbols;
  EXPECT_FALSE(torch::equal(model->forward(changed, lengths(), target)[0], logits[0])) << "the source is seen";
}

TEST_P(EveryTranslator, StepsEqualTheWhole) {
  const torch::NoGradGuard no_grad;
  auto model = random_translator(GetParam().options, torch::kFloat64);
  const auto target = random_symbols(3, 20);
  const auto encoded = model->encode(random_symbols(3, 9), lengths());
  const auto whole = model->decode(target, encoded);
  EXPECT_LT(difference(model->decode(target, encoded, /*last_only=*/true), whole.slice(1, -1)), 1e-12);
  auto cache = model->start(encoded);
  const auto go = [&](const Tensor& symbols, const Tensor& expected, int64_t count) {
    const auto first = cache.length();
    const auto logits = model->step(symbols.narrow(1, first, count), cache);
    EXPECT_LT(difference(logits, expected.narrow(1, first, count)), 1e-11) << "from " << first;
  };
  for (const int64_t count : {1, 1, 6, 1}) go(target, whole, count);
  const auto at9 = cache;
  model->step(target.flip({0}).narrow(1, 9, 1), cache);  // another symbol, taken back
  cache.crop(9);
  go(target, whole, 11);
  cache = at9;
  cache.repeat(2);
  const auto rows = there(torch::tensor({1, 0, 5, 5}));  // sentences 0 and 2 stay
  cache.reorder(rows, there(torch::tensor({0, 2})));
  const auto sentence = there(torch::tensor({0, 0, 2, 2}));
  go(target.index_select(0, sentence), whole.index_select(0, sentence), 4);
  const auto chosen = there(torch::tensor({3, 0, 2}));
  cache.select(chosen);
  go(target.index_select(0, sentence).index_select(0, chosen), whole.index_select(0, sentence).index_select(0, chosen),
     3);
  EXPECT_THROW(cache.crop(17), c10::ValueError);
}

TEST_P(EveryTranslator, LearnsThroughAllOfItsParameters) {
  auto model = random_translator(GetParam().options);
  const auto target = random_symbols(3, 12);
  const auto logits = model->forward(random_symbols(3, 9), lengths(), target);
  models::label_smoothed_loss(logits, random_symbols(3, 12), lengths()).backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
    EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key();
  }
  const auto plain = model->forward(random_symbols(2, 9), {}, target.slice(0, 0, 2));
  const BFloat16 autocast;
  torch::manual_seed(1);
  const auto rough = model->forward(random_symbols(2, 9), {}, target.slice(0, 0, 2));
  EXPECT_TRUE(rough.isfinite().all().item<bool>());
}

TEST_P(EveryTranslator, CachedAndUncachedTranslationsAgree) {
  auto model = random_translator(GetParam().options);
  const std::vector<std::vector<int64_t>> sources{{3, 9, 4, 11, 7}, {5}, {8, 8, 3, 20, 6, 4, 3, 3, 12}, {}, {4, 9}};
  BeamSearchOptions options{.n_best = 3, .extra_length = 8};
  const auto cached = models::translate(model, sources, options);
  options.cached = false;
  const auto uncached = models::translate(model, sources, options);
  options.cached = true;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto alone = models::translate(model, {sources[i]}, options)[0];
    ASSERT_EQ(cached[i].size(), 3U);
    std::set<std::vector<int64_t>> different;
    for (std::size_t j = 0; j < cached[i].size(); ++j) {
      EXPECT_EQ(cached[i][j].tokens, uncached[i][j].tokens);
      EXPECT_NEAR(cached[i][j].score, uncached[i][j].score, 1e-4);
      EXPECT_EQ(cached[i][j].tokens, alone[j].tokens);
      EXPECT_NEAR(cached[i][j].score, alone[j].score, 1e-4);
      if (j > 0) {
        EXPECT_GE(cached[i][j - 1].score, cached[i][j].score);
      }
      different.insert(cached[i][j].tokens);
    }
    EXPECT_EQ(different.size(), 3U);
  }
}

TEST_P(EveryTranslator, ScoresAreSumsOfLogProbabilities) {
  const torch::NoGradGuard no_grad;
  auto model = random_translator(GetParam().options);
  const auto& o = model->options();
  const std::vector<int64_t> source{3, 9, 4, 11, 7};
  const auto all = models::translate(model, {source}, {.n_best = 4});
  for (const auto& found : all[0]) {
    auto symbols = found.tokens;
    symbols.insert(symbols.begin(), o.begin);
    const auto target = there(torch::tensor(symbols, torch::kInt64)).unsqueeze(0);
    const auto logs =
        model->forward(there(torch::tensor(source, torch::kInt64)).unsqueeze(0), {}, target)[0].log_softmax(-1);
    symbols.erase(symbols.begin());
    symbols.push_back(o.end);
    const auto chosen = there(torch::tensor(symbols, torch::kInt64)).unsqueeze(1);
    const auto sum = logs.gather(1, chosen).sum().item<double>();
    EXPECT_NEAR(found.log_probability, sum, 1e-4);
    EXPECT_NEAR(found.score, sum / std::pow((5.0 + static_cast<double>(symbols.size())) / 6, 0.6), 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryTranslator, ::testing::ValuesIn(translator_cases()),
                         [](const auto& info) { return info.param.name; });

// The plain model, written out.
TEST(Translator, IsItsFormula) {
  torch::manual_seed(2);
  auto model = random_translator(small_translator(), torch::kFloat64);
  const auto p = model->named_parameters();
  const auto linear = [&](const std::string& name, const Tensor& x) {
    return torch::linear(x, p[name + ".weight"], p[name + ".bias"]);
  };
  const auto norm = [&](const std::string& name, const Tensor& x) {
    return torch::layer_norm(x, {16}, p[name + ".weight"], p[name + ".bias"]);
  };
  const auto heads = [](const Tensor& x) { return x.unflatten(-1, {2, 8}).transpose(1, 2); };
  const auto attend = [&](const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
    auto scores = torch::matmul(heads(q), heads(k).transpose(-1, -2)) / std::sqrt(8.0);
    if (causal) scores = scores.masked_fill(torch::ones_like(scores).triu(1) != 0, -INFINITY);
    return torch::matmul(scores.softmax(-1), heads(v)).transpose(1, 2).flatten(2);
  };
  const auto self = [&](const std::string& block, const Tensor& x, bool causal) {
    const auto qkv = linear(block + "attention.qkv", norm(block + "norm1", x)).chunk(3, -1);
    return x + linear(block + "attention.out", attend(qkv[0], qkv[1], qkv[2], causal));
  };
  const auto feed = [&](const std::string& block, const Tensor& x) {
    return x + linear(block + "feedforward.down", linear(block + "feedforward.up", norm(block + "norm2", x)).relu());
  };
  const auto embed = [&](const Tensor& tokens) {
    const auto angle = torch::outer(there(torch::arange(tokens.size(1), torch::kFloat64)),
                                    torch::pow(10000, -there(torch::arange(0, 16, 2, torch::kFloat64)) / 16));
    return 4 * p["token.weight"].index({tokens}) + torch::stack({angle.sin(), angle.cos()}, -1).flatten(1);
  };
  const auto source = random_symbols(2, 9), target = random_symbols(2, 7);
  auto s = embed(source);
  for (const std::string block : {"encoder.0.", "encoder.1."}) s = feed(block, self(block, s, false));
  const auto memory = norm("encoder_norm", s);
  auto t = embed(target);
  for (const std::string block : {"decoder.0.", "decoder.1."}) {
    t = self(block, t, true);
    const auto kv = linear(block + "cross_attention.kv", memory).chunk(2, -1);
    const auto q = linear(block + "cross_attention.q", norm(block + "cross_norm", t));
    t = feed(block, t + linear(block + "cross_attention.out", attend(q, kv[0], kv[1], false)));
  }
  const auto expected = torch::matmul(norm("decoder_norm", t), p["token.weight"].t());
  EXPECT_LT(difference(model->forward(source, {}, target), expected), 1e-12);
}

TEST(Translator, StartsAsTensor2TensorDoes) {
  auto options = small_translator("context_pool");
  options.features = 256;
  options.heads = 4;
  options.feedforward = 512;
  options.encoder_attention = "local";
  options.tied = false;
  torch::manual_seed(3);
  Translator model(options);
  const auto p = model->named_parameters();
  const auto expect_uniform = [&](const std::string& name, double bound) {
    EXPECT_NEAR(p[name].abs().max().item<double>(), bound, 0.01 * bound) << name;
    EXPECT_NEAR(p[name].std().item<double>(), bound / std::sqrt(3.0), 0.02 * bound) << name;
  };
  expect_uniform("encoder.0.attention.qkv.weight", std::sqrt(6.0 / 512));
  expect_uniform("encoder.0.attention.local.weight", std::sqrt(6.0 / 128));
  expect_uniform("decoder.1.cross_attention.kv.weight", std::sqrt(6.0 / 512));
  expect_uniform("decoder.1.cross_attention.q.weight", std::sqrt(6.0 / 512));
  expect_uniform("decoder.0.feedforward.up.weight", std::sqrt(6.0 / 768));
  EXPECT_NEAR(p["token.weight"].std().item<double>(), 1.0 / 16, 0.003);
  EXPECT_NEAR(p["head.weight"].std().item<double>(), 1.0 / 16, 0.003);
  for (const auto& item : p) {
    const bool ours =
        item.key().find("attention.") != std::string::npos || item.key().find("norm") != std::string::npos;
    if (ours && item.key().ends_with(".bias")) {
      EXPECT_TRUE((item.value() == 0).all().item<bool>()) << item.key();
    }
  }
  const std::shared_ptr<nn::TransformerBlockImpl> blocks[] = {model->encoder()[0].ptr(), model->decoder()[0].ptr()};
  for (const auto& block : blocks) {  // sizes of 4 tokens in both, at any length
    const auto windows = block->context_pool()->forward_with_windows(torch::randn({2, 30, 256})).second;
    EXPECT_LT((windows.sigma - 4.0).abs().max().item<double>(), 1e-4);
  }
}

TEST(Translator, DropsInTrainingOnly) {
  for (const auto* which : {"dropout", "attention_dropout", "activation_dropout"}) {
    auto options = small_translator();
    for_each_option(options, [&](const std::string& name, auto& value, const char*) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) {
        if (name.ends_with("dropout")) value = name == which ? 0.3 : 0;
      }
    });
    Translator model(options);
    model->to(device());
    const auto source = random_symbols(2, 9), target = random_symbols(2, 9);
    EXPECT_FALSE(torch::equal(model->forward(source, {}, target), model->forward(source, {}, target))) << which;
    model->eval();
    EXPECT_TRUE(torch::equal(model->forward(source, {}, target), model->forward(source, {}, target))) << which;
  }
}

TEST(Translator, SmoothsLabels) {
  const auto logits = random({2, 3, 5}), targets = there(torch::tensor({{0, 4, 2}, {1, 3, 3}}));
  const auto real = there(torch::tensor({{true, true, true}, {true, false, false}}));
  double sum = 0;
  for (const auto& [b, t] : std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {0, 1}, {0, 2}, {1, 0}}) {
    const auto logs = logits[b][t].log_softmax(0);
    sum -= 0.9 * logs[targets[b][t].item<int64_t>()].item<double>() + 0.1 * logs.mean().item<double>();
  }
  EXPECT_NEAR(models::label_smoothed_loss(logits, targets, real, 0.1).item<double>(), sum / 4, 1e-12);
  const auto half = logits.to(torch::kBFloat16);
  EXPECT_EQ(models::label_smoothed_loss(half, targets, real).scalar_type(), torch::kFloat32);
  EXPECT_THROW(models::label_smoothed_loss(logits, targets.slice(1, 1)), c10::ValueError);
  EXPECT_THROW(models::label_smoothed_loss(logits, targets, {}, 1), c10::ValueError);
}

TEST(Translator, LearnsToCopy) {
  torch::manual_seed(1);
  TranslatorOptions options = small_translator();
  options.vocabulary = 9;
  options.features = 32;
  options.dropout = options.attention_dropout = options.activation_dropout = 0;
  Translator model(options);
  model->to(device());
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(3e-3));
  const auto begin = there(torch::full({64, 1}, options.begin)), end = there(torch::full({64, 1}, options.end));
  for (int step = 0; step < 300; ++step) {
    const auto text = there(torch::randint(3, 9, {64, 4}));
    const auto logits = model->forward(text, {}, torch::cat({begin, text}, 1));
    adam.zero_grad();
    models::label_smoothed_loss(logits, torch::cat({text, end}, 1)).backward();
    adam.step();
  }
  const std::vector<std::vector<int64_t>> sources{{3, 8, 4, 5}, {7, 7, 6, 3}, {4, 5, 8, 8}};
  const auto found = models::translate(model, sources);
  for (std::size_t i = 0; i < sources.size(); ++i) EXPECT_EQ(found[i][0].tokens, sources[i]);
  EXPECT_TRUE(model->is_training());
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(TranslatorOptions, RefuseWhatCannotBeBuilt) {
  const auto build = [](const std::function<void(TranslatorOptions&)>& change) {
    auto options = small_translator("context_pool");
    change(options);
    return message_of([&] { Translator model(options); });
  };
  const auto expect = [&](const std::function<void(TranslatorOptions&)>& change, const std::string& part) {
    const auto message = build(change);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  EXPECT_EQ(build([](auto&) {}), "no error");
  expect([](auto& o) { o.layers = 0; }, "layers must be from 1");
  expect([](auto& o) { o.features = int64_t{1} << 40; }, "features");
  expect([](auto& o) { o.source_vocabulary = -1; }, "source_vocabulary must be from 0");
  expect([](auto& o) { o.end = kSymbols; }, "end must be one of the 23 symbols");
  expect([](auto& o) { o.dropout = 1; }, "dropout");
  expect([](auto& o) { o.attention_dropout = 1; }, "dropout");
  expect([](auto& o) { o.activation = "rellu"; }, "\"relu\"");
  expect([](auto& o) { o.encoder_attention = "local,ful"; }, "\"full\"");
  expect([](auto& o) { o.decoder_attention = "window"; }, "full, local, area");
  expect([](auto& o) { o.mixer_in = "encoder,decodr"; }, "\"decoder\"");
  expect([](auto& o) { o.mixer = "contextpool"; }, "\"context_pool\"");
  expect([](auto& o) { o.mix.places = "Y=depthwise"; }, "ABOXCDE");
  expect([](auto& o) { o.pool.reference_length = 0; }, "reference_length");
  auto model = random_translator(small_translator());
  const auto target = random_symbols(2, 4);
  EXPECT_THROW(model->forward(torch::zeros({2, 4}), {}, target), c10::ValueError);
  EXPECT_THROW(model->forward(random_symbols(3, 4), {}, target), c10::ValueError);
  EXPECT_THROW(model->forward(random_symbols(2, 4), {}, target[0]), c10::ValueError);
  EXPECT_THROW(models::translate(model, {{3, 4}, {kSymbols}}), c10::ValueError);
  EXPECT_TRUE(models::translate(model, {}).empty());
}

TEST(Translator, ThatHasLearnedItsPositionsKeepsToThem) {
  auto options = small_translator();
  options.positions = "learned";
  options.length = 12;
  auto model = random_translator(options);
  const auto all = models::translate(model, {{3, 4, 5}}, {.n_best = 4});
  for (const auto& found : all[0]) EXPECT_LE(found.tokens.size(), 11U);
}

TEST(Translators, HaveNamesSizesAndCosts) {
  EXPECT_EQ(models::translators().size(), 25U);
  const auto parameters = [](const char* name) {
    return models::cost(models::find_translator(name).options, 10, 10).parameters;
  };
  // Of tensor2tensor's base: 6 encoder layers of 4 d^2 + 2 d ff, 6 decoder layers of 8 d^2 + 2 d ff, and the embedding;
  // then biases and norms.
  const int64_t matrices = 6 * (12 * 512 * 512 + 4 * 512 * 2048) + 32000 * 512;
  const int64_t vectors = 6 * (4 * 512 + 2048 + 512 + 4 * 512) + 6 * (8 * 512 + 2048 + 512 + 6 * 512) + 4 * 512;
  EXPECT_EQ(parameters("nmt-base"), matrices + vectors);
  EXPECT_EQ(parameters("cp-nmt-base") - parameters("nmt-base"), 18 * 98754);
  EXPECT_EQ(parameters("dw-nmt-base") - parameters("nmt-base"), 18 * 512 * 16);
  EXPECT_EQ(parameters("nmt-base-area"), parameters("nmt-base"));
  EXPECT_EQ(parameters("nmt-base-local") - parameters("nmt-base"), 3 * (8 * 64 * 64 + 2 * 512));
  for (const auto& [name, summary, options] : models::translators()) {
    const auto said = models::cost(options, 3, 4).parameters;
    EXPECT_LE(models::least_parameters(options), static_cast<double>(said)) << name;
    if (options.features > 128) continue;
    const Translator model(options);
    int64_t count = 0;
    for (const auto& parameter : model->parameters()) count += parameter.numel();
    EXPECT_EQ(said, count) << name;
  }
  EXPECT_EQ(models::find_translator("nmt-multi30k-local").options.encoder_attention, "local,local,full");
  EXPECT_EQ(models::find_translator("nmt-tiny-area").options.cross_attention, "area,area");
  EXPECT_NE(message_of([] { models::find_translator("nmt-smal"); }).find("\"nmt-small\""), std::string::npos);
}

TEST(Translators, CostWhatTheirFormulasSay) {
  TranslatorOptions options{.vocabulary = 10, .layers = 1, .features = 4, .heads = 1, .feedforward = 8};
  const double s = 3, t = 2, d = 4, ff = 8;
  const double encoder = s * (4 * d * d + 2 * d * ff) + 2 * d * s * s;
  const double decoder = t * (6 * d * d + 2 * d * ff) + s * 2 * d * d + 2 * d * (t * (t + 1) / 2 + t * s);
  const auto plain = models::cost(options, 3, 2);
  EXPECT_EQ(plain.flops, 2 * (encoder + decoder + t * 10 * d));
  EXPECT_EQ(plain.pooling_flops, 0);
  options.cross_attention = "area";  // 3 + 2 + 1 areas of 3 tokens
  EXPECT_EQ(models::cost(options, 3, 2).flops - plain.flops, 2 * 2 * d * t * 3);
  options.mixer = "context_pool";
  EXPECT_EQ(models::cost(options, 3, 2).pooling_flops, 2 * d * (s * s + 2 * t * (t + 1) / 2));
}

}  // namespace
}  // namespace contextpool::testing
