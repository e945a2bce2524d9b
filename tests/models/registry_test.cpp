// The named models: they build, they have the parameters of the papers' tables, and their costs add up.
#include "contextpool/models/registry.h"

#include "contextpool/models/language_models.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace contextpool::testing {
namespace {

using models::cost;
using models::find_language_model;
using models::LanguageModel;

int64_t parameters_of(const torch::nn::Module& module) {
  const auto all = module.parameters();
  return std::accumulate(all.begin(), all.end(), int64_t{0}, [](int64_t n, const auto& p) { return n + p.numel(); });
}

int64_t parameters_of(const std::string& name) { return cost(find_language_model(name).options, 2048).parameters; }

TEST(Registry, EveryModelBuildsAndPredicts) {
  std::set<std::string> names;
  for (const auto& model : models::language_models()) {
    SCOPED_TRACE(model.name);
    EXPECT_TRUE(names.insert(model.name).second);
    EXPECT_FALSE(model.summary.empty());
    auto options = model.options;
    const auto counted = cost(options, 1024).parameters;
    options.layers = std::min<int64_t>(options.layers, 2);  // the others are alike
    LanguageModel shallow(options);
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(shallow(torch::zeros({1, 9}, torch::kInt64)).sizes(), (std::vector<int64_t>{1, 9, options.vocabulary}));
    const auto of_layers = parameters_of(*shallow->blocks()[0]) * (model.options.layers - options.layers);
    EXPECT_EQ(counted, parameters_of(*shallow) + of_layers);
  }
  for (const char* name : {"transformer-4",
                           "transformer-6",
                           "transformer-8",
                           "transformer-12",
                           "cp-transformer-4",
                           "cp-transformer-6",
                           "cp-transformer-11",
                           "cp-transformer-12",
                           "cp-transformer-14",
                           "dw-transformer-6",
                           "canon-transformer-6",
                           "canon-transformer-12",
                           "gated-cp-transformer-6",
                           "gated-cp-transformer-12",
                           "tiny",
                           "cp-tiny",
                           "dw-tiny",
                           "canon-tiny",
                           "canon-small",
                           "gated-cp-tiny",
                           "gated-cp-small",
                           "small",
                           "cp-small",
                           "dw-small",
                           "longformer-12",
                           "cp-longformer-12",
                           "adaptive-span-12",
                           "cp-adaptive-span-12",
                           "longformer-tiny",
                           "cp-longformer-tiny",
                           "adaptive-span-tiny",
                           "cp-adaptive-span-tiny"}) {
    EXPECT_EQ(names.count(name), 1) << name;
  }
}

TEST(Registry, ModelsHaveThePublishedParameters) {
  const auto millions = [](const std::string& name) { return static_cast<double>(parameters_of(name)) / 1e6; };
  EXPECT_NEAR(millions("transformer-12"), 38.09, 0.005);
  EXPECT_NEAR(millions("cp-transformer-11"), 36.0, 0.05);
  EXPECT_NEAR(millions("cp-transformer-12"), 39.3, 0.05);
  EXPECT_NEAR(millions("cp-transformer-14"), 45.8, 0.05);
  // The published table of small models has learned positions of 1024 rows.
  const auto with_table = [](const std::string& name) {
    auto options = find_language_model(name).options;
    options.positions = "learned";
    options.length = 1024;
    return static_cast<double>(cost(options, 1024).parameters) / 1e6;
  };
  EXPECT_NEAR(with_table("transformer-4"), 13.4, 0.05);
  EXPECT_NEAR(with_table("transformer-6"), 19.7, 0.05);
  EXPECT_NEAR(with_table("transformer-8"), 26.0, 0.05);
  EXPECT_NEAR(with_table("cp-transformer-4"), 13.8, 0.05);
  EXPECT_NEAR(with_table("cp-transformer-6"), 20.3, 0.05);
  EXPECT_NEAR(with_table("dw-transformer-6"), 19.75, 0.025);
  EXPECT_NEAR(with_table("gated-cp-transformer-6"), 21.135, 0.0005);  // as the row of docs/mixers.md
  EXPECT_EQ(parameters_of("cp-transformer-6") - parameters_of("transformer-6"), 6 * 98'754);
  EXPECT_EQ(parameters_of("dw-transformer-6") - parameters_of("transformer-6"), 6 * (512 * 15 + 512));
  EXPECT_EQ(parameters_of("canon-transformer-6") - parameters_of("transformer-6"), 6 * 2 * 512 * 4);
}

TEST(Registry, CostsAreCountedAsSaid) {
  constexpr double kD = 512, kFeedforward = 2048, kVocabulary = 256, kLayers = 6, kLength = 1000;
  const double matrices = 2 * (kLayers * (4 * kD * kD + 2 * kD * kFeedforward) + kD * kVocabulary);
  const double pass = 2 * kD * (kLength + 1) / 2 * kLayers;
  const auto of = [](const std::string& name, const std::string& weights = "softmax") {
    auto options = find_language_model(name).options;
    options.pool.weights = weights;
    return cost(options, 1000);
  };
  EXPECT_DOUBLE_EQ(of("transformer-6").flops, matrices + 2 * pass);
  EXPECT_DOUBLE_EQ(of("transformer-6").pooling_flops, 0);
  EXPECT_DOUBLE_EQ(of("dw-transformer-6").flops, matrices + 2 * pass + 2 * kLayers * kD * 15);
  EXPECT_DOUBLE_EQ(of("cp-transformer-6").flops, matrices + 2 * pass + 2 * kLayers * 3 * (kD * 64 + 64 * 2));
  EXPECT_DOUBLE_EQ(of("cp-transformer-6").pooling_flops, pass);
  EXPECT_DOUBLE_EQ(of("cp-transformer-6", "nonlocal").pooling_flops, 2 * pass);
  const auto with = [](const std::string& places) {
    auto options = find_language_model("cp-transformer-6").options;  // whose mixer does not count
    options.mix.places = places;
    return cost(options, 1000);
  };
  EXPECT_DOUBLE_EQ(with("AC=canon").flops, matrices + 2 * pass + 2 * kLayers * 2 * kD * 4);
  EXPECT_DOUBLE_EQ(with("AC=canon").pooling_flops, 0);
  EXPECT_DOUBLE_EQ(with("AC=context_pool").pooling_flops, 2 * pass);
  EXPECT_DOUBLE_EQ(with("B=context_pool").pooling_flops, 3 * pass);
  EXPECT_DOUBLE_EQ(with("O=dynamic").flops, matrices + 2 * pass + 2 * kLayers * (kD * 4 + 15 * (kD + 4 * kD)));
}

// Pair by pair.
double pairs_a_token(const nn::Reach& r, int64_t heads, int64_t length) {
  double pairs = 0;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < length; ++i) {
      const auto step = r.kind == "window" && h >= heads - r.dilated_heads ? r.dilation + 1 : 1;
      auto window = r.kind == "window" ? r.window : r.span_limit;
      for (int64_t n = 0, from = r.row; r.kind == "window" && n < r.window_doublings; ++n, from *= 2)
        window *= i < from ? 1 : 2;
      pairs += static_cast<double>(std::min(window, i / step + 1));
    }
  }
  return pairs / static_cast<double>(heads * length);
}

TEST(Registry, LimitedAttentionCostsWhatItSees) {
  for (const std::string name : {"longformer-tiny", "adaptive-span-tiny"}) {
    auto options = find_language_model(name).options;
    options.length = 60;
    options.window_doublings = 2;
    options.span_limit = 100;
    auto full = options;
    full.attention = "full";
    const int64_t length = 301;
    double expected = 0;
    for (int64_t layer = 0; layer < options.layers; ++layer) {
      const auto seen = pairs_a_token(models::reach_of(options, layer), options.heads, length);
      expected += 4.0 * static_cast<double>(options.features) * (static_cast<double>(length + 1) / 2 - seen);
    }
    EXPECT_GT(expected, 0);
    EXPECT_NEAR(cost(full, length).flops - cost(options, length).flops, expected, 1e-6 * expected) << name;
  }
  EXPECT_EQ(parameters_of("longformer-12"), parameters_of("transformer-12"));
  EXPECT_EQ(parameters_of("cp-adaptive-span-12"), parameters_of("cp-transformer-12") + 12 * 8);
}

TEST(Registry, FamiliesGiveTheirOptionsBackFromTheirJson) {
  for (const auto* family : models::families()) {
    for (const auto& model : family->models()) {
      SCOPED_TRACE(model.name);
      EXPECT_EQ(&models::find_model(model.name).family, family);
      EXPECT_EQ(to_json(family->read(to_json(model.options), "test")), to_json(model.options));
      EXPECT_LE(family->least_parameters(model.options),
                static_cast<double>(family->cost(model.options, 0).parameters));
    }
  }
  EXPECT_ANY_THROW(models::register_family(models::language_model_family())) << "the name is taken";
}

TEST(Registry, SaysTheNearestName) {
  EXPECT_EQ(find_language_model("cp-transformer-12").options.mixer, "context_pool");
  EXPECT_EQ(find_language_model("cp-transformer-12").options.pool.reference_length, 2048);
  EXPECT_EQ(find_language_model("dw-transformer-6").options.mixer, "depthwise");
  try {
    find_language_model("cp-transfomer-12");
    FAIL() << "a model that does not exist was found";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what_without_backtrace()).find("did you mean \"cp-transformer-12\""),
              std::string::npos);
  }
}

}  // namespace
}  // namespace contextpool::testing
