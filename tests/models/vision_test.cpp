// ViT, DeiT, Swin and ResNet: published sizes and costs, mixers in their places, any image size, weights of others.
// tests/python/test_vision_models.py compares logits with Python's, test_foreign_weights.py with other packages'.
#include <gtest/gtest.h>

#include "../../src/models/vision_parts.h"
#include "../device.h"
#include "contextpool/models/foreign.h"
#include "vision_cases.h"

namespace contextpool::testing {
namespace {

using torch::Tensor;

template <typename Named>
auto options_of(const std::vector<Named>& all, const std::string& name) {
  for (const auto& model : all) {
    if (model.name == name) return model.options;
  }
  throw std::runtime_error("no model " + name);
}

auto vit(const std::string& name, int64_t image_size = 0) {
  auto options = options_of(models::vision_transformers(), name);
  if (image_size > 0) options.image_size = image_size;
  return options;
}
auto swin(const std::string& name, int64_t image_size = 224, int64_t window = 7) {
  auto options = options_of(models::swins(), name);
  options.image_size = image_size;
  options.window = window;
  return options;
}
auto resnet(const std::string& name) { return options_of(models::resnets(), name); }

int64_t parameters(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const auto& parameter : model.parameters()) count += parameter.numel();
  return count;
}

void expect_close(const Tensor& got, const Tensor& expected, double tolerance = 1e-5) {
  const auto size = std::max(1.0, expected.abs().max().item<double>());
  EXPECT_LE((got - expected).abs().max().item<double>(), tolerance * size);
}

template <typename Module, typename Options>
Module random_model(const Options& options) {
  Module model(options);
  randomise(*model);
  model->to(device());
  return model;
}

Tensor random_images(int64_t size, int64_t batch = 2) { return there(torch::randn({batch, 3, size, size})); }

// Copies what both have by name.
void copy_shared(torch::nn::Module& to, const torch::nn::Module& from) {
  const torch::NoGradGuard no_grad;
  const auto parameters = from.named_parameters();
  for (auto& item : to.named_parameters()) item.value().copy_(parameters[item.key()]);
  const auto buffers = from.named_buffers();
  for (auto& item : to.named_buffers()) item.value().copy_(buffers[item.key()]);
}

// VISION.md section 1; parameters exactly where it has them so, else to the printed digits.
TEST(VisionCost, ParametersAreThePublishedOnes) {
  const auto millions = [](const auto& options, int digits) {
    const double scale = std::pow(10, digits);
    return std::round(static_cast<double>(models::cost(options).parameters) / 1e6 * scale) / scale;
  };
  EXPECT_EQ(millions(vit("vit-base-patch16", 384), 2), 86.86);
  EXPECT_EQ(millions(vit("vit-large-patch16", 384), 1), 304.7);
  EXPECT_EQ(millions(vit("deit-small"), 2), 22.05);
  EXPECT_EQ(millions(vit("deit-base"), 2), 86.57);
  EXPECT_EQ(millions(swin("swin-small"), 2), 49.61);
  EXPECT_EQ(millions(swin("swin-base"), 2), 87.77);
  EXPECT_EQ(millions(swin("swin-base", 384, 12), 2), 87.90);
  EXPECT_EQ(millions(resnet("resnet-50"), 2), 25.56);
  EXPECT_EQ(millions(resnet("resnet-101"), 2), 44.55);
  EXPECT_EQ(millions(vit("cp-vit-base-patch16", 384), 2), 88.86);
  EXPECT_EQ(millions(swin("cp-swin-base"), 2), 89.07);
  EXPECT_EQ(millions(resnet("cp-resnet-44"), 3), 0.680);
  EXPECT_EQ(millions(resnet("cp-resnet-46"), 3), 0.698);
  EXPECT_EQ(models::cost(resnet("resnet-44")).parameters, 658'586);
  EXPECT_EQ(models::cost(resnet("resnet-46")).parameters, 677'146);
  EXPECT_EQ(models::cost(resnet("cp-resnet-50")).parameters - models::cost(resnet("resnet-50")).parameters, 258'966);
  const auto layer =
      models::cost(vit("cp-vit-base-patch16")).parameters - models::cost(vit("vit-base-patch16")).parameters;
  EXPECT_EQ(layer, 12 * 166'346);
}

// The table's 4.11 and 7.83 of ResNet-50 and -101 also count two operations for each number that a batch norm makes:
// 11,113,984 and 16,231,936 of them. Ours are without, as for every other row: 4.09 and 7.80.
TEST(VisionCost, MultiplyAddsAreThePublishedOnes) {
  const auto billions = [](const auto& options, int digits = 2, double norms = 0) {
    const double scale = std::pow(10, digits);
    return std::round((models::cost(options).macs + norms) / 1e9 * scale) / scale;
  };
  EXPECT_EQ(billions(vit("vit-base-patch16", 384)), 55.48);
  EXPECT_EQ(billions(vit("vit-large-patch16", 384), 1), 191.1);
  EXPECT_EQ(billions(vit("deit-small")), 4.60);
  EXPECT_EQ(billions(vit("deit-base")), 17.56);
  EXPECT_EQ(billions(vit("cp-vit-base-patch16", 384)), 56.63);
  EXPECT_EQ(billions(swin("swin-small")), 8.74);
  EXPECT_EQ(billions(swin("swin-base")), 15.43);
  EXPECT_EQ(billions(swin("swin-base", 384, 12)), 47.08);
  EXPECT_EQ(billions(resnet("resnet-44"), 4), 0.0972);
  EXPECT_EQ(billions(resnet("resnet-50")), 4.09);
  EXPECT_EQ(billions(resnet("resnet-50"), 2, 2 * 11'113'984.0), 4.11);
  EXPECT_EQ(billions(resnet("resnet-101")), 7.80);
  EXPECT_EQ(billions(resnet("resnet-101"), 2, 2 * 16'231'936.0), 7.83);
  const auto more = models::cost(resnet("cp-resnet-44")).macs / models::cost(resnet("resnet-44")).macs;
  EXPECT_NEAR(more, 1.058, 0.0005);
}

template <typename Module, typename Options>
void expect_counted() {
  for (const auto& [name, options] : vision_cases<Options>()) {
    EXPECT_EQ(models::cost(options).parameters, parameters(*Module(options))) << name;
  }
}

TEST(VisionCost, CountsWhatIsBuilt) {
  expect_counted<models::VisionTransformer, models::VisionTransformerOptions>();
  expect_counted<models::Swin, models::SwinOptions>();
  expect_counted<models::ResNet, models::ResNetOptions>();
}

TEST(VisionCost, ThePoolingSumIsCountedApart) {
  auto options = small_vision_options<models::VisionTransformerOptions>();
  options.mixer = "context_pool";
  EXPECT_EQ(models::cost(options).pooling_macs, 2.0 * 36 * 36 * 16);  // layers, grid of 6 x 6, features
  options.pool.weights = "nonlocal";
  EXPECT_EQ(models::cost(options).pooling_macs, 2 * 2.0 * 36 * 36 * 16);
}

template <typename Module, typename Options>
void expect_plain_with_closed_windows() {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  auto options = small_vision_options<Options>();
  const auto plain_options = options;
  options.mixer = "context_pool";
  auto open = random_model<Module>(options);
  options.pool.initial_sigma = options.pool.ratio = 1e-3;
  auto closed = random_model<Module>(options);
  auto plain = random_model<Module>(plain_options);
  copy_shared(*closed, *open);
  copy_shared(*plain, *open);
  const auto images = random_images(options.image_size);
  const auto expected = plain->forward(images);
  expect_close(closed->forward(images), expected);
  EXPECT_GT((open->forward(images) - expected).abs().max().template item<double>(), 1e-3);
}

TEST(VisionModels, ClosedWindowsLeaveThePlainModel) {
  expect_plain_with_closed_windows<models::VisionTransformer, models::VisionTransformerOptions>();
  expect_plain_with_closed_windows<models::Swin, models::SwinOptions>();
  expect_plain_with_closed_windows<models::ResNet, models::ResNetOptions>();
}

template <typename Module, typename Options>
void expect_channels_last_equal() {
  const torch::NoGradGuard no_grad;
  for (const char* mixer : {"none", "context_pool", "depthwise"}) {
    auto options = small_vision_options<Options>();
    options.mixer = mixer;
    auto model = random_model<Module>(options);
    const auto images = random_images(options.image_size);
    expect_close(model->forward(images.contiguous(torch::MemoryFormat::ChannelsLast)), model->forward(images));
  }
}

TEST(VisionModels, ChannelsLastSaysTheSame) {
  expect_channels_last_equal<models::VisionTransformer, models::VisionTransformerOptions>();
  expect_channels_last_equal<models::Swin, models::SwinOptions>();
  expect_channels_last_equal<models::ResNet, models::ResNetOptions>();
}

template <typename Module, typename Options>
void expect_gradients(Options options) {
  torch::manual_seed(2);
  options.mixer = "context_pool";
  options.pool.ratio = 0.5;
  auto model = random_model<Module>(options);
  model->forward(random_images(options.image_size, 4)).square().sum().backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().template item<double>(), 0) << item.key();
  }
}

TEST(VisionModels, GradientsReachThePredictors) {
  auto options = small_vision_options<models::VisionTransformerOptions>();
  options.readout = "mean";
  expect_gradients<models::VisionTransformer>(options);
  expect_gradients<models::Swin>(small_vision_options<models::SwinOptions>());
  expect_gradients<models::ResNet>(small_vision_options<models::ResNetOptions>());
}

TEST(VisionModels, WindowsStartAtTheInitialSizeOnTheirMaps) {
  const torch::NoGradGuard no_grad;
  const auto expect = [](auto model, std::vector<int64_t> sides, double sigma) {
    model->eval();
    model->to(device());
    const auto windows = model->forward_with_windows(random_images(32, 1)).second;
    ASSERT_EQ(windows.size(), sides.size());
    for (std::size_t i = 0; i < sides.size(); ++i) {
      EXPECT_EQ(windows[i].sigma.sizes(), (std::vector<int64_t>{1, sides[i], sides[i]}));
      EXPECT_TRUE(torch::allclose(windows[i].sigma, torch::full_like(windows[i].sigma, sigma)));
      EXPECT_EQ(windows[i].log_weight.sizes(), windows[i].sigma.sizes());
    }
  };
  expect(models::VisionTransformer(vit("cp-vit-cifar")), {16, 16, 16, 16, 16, 16}, 1);
  auto row = vit("cp-vit-cifar");
  row.windows = "row";
  expect(models::VisionTransformer(row), {16, 16, 16, 16, 16, 16}, 1);
  expect(models::Swin(swin("cp-swin-tiny", 32)), {8, 8, 4, 4, 2, 2, 2, 2, 2, 2, 1, 1}, 1);
  expect(models::ResNet(resnet("cp-resnet-20")), {32, 16, 8}, 0.5);
}

TEST(VisionTransformer, TheClassTokenPassesTheMixerBy) {
  const torch::NoGradGuard no_grad;
  for (const char* windows : {"grid", "row"}) {
    auto options = small_vision_options<models::VisionTransformerOptions>();
    options.layers = 1;
    options.windows = windows;
    auto plain = random_model<models::VisionTransformer>(options);
    options.mixer = "depthwise";
    auto mixed = random_model<models::VisionTransformer>(options);
    copy_shared(*plain, *mixed);
    const auto images = random_images(options.image_size);
    EXPECT_TRUE(torch::equal(plain(images), mixed(images)));
  }
}

TEST(VisionTransformer, ADistilledModelGivesBothHeadsInTrainingAndTheirMeanAfterIt) {
  auto options = small_vision_options<models::VisionTransformerOptions>();
  options.distilled = true;
  auto model = random_model<models::VisionTransformer>(options);
  const auto images = random_images(options.image_size);
  const auto mean = model(images);
  EXPECT_EQ(mean.sizes(), (std::vector<int64_t>{2, 7}));
  model->train();
  const auto both = model(images);
  EXPECT_EQ(both.sizes(), (std::vector<int64_t>{2, 2, 7}));
  expect_close(both.mean(1), mean);
}

TEST(Swin, TakesImagesOfAnySize) {
  const torch::NoGradGuard no_grad;
  auto options = small_vision_options<models::SwinOptions>();
  options.mixer = "context_pool";
  auto model = random_model<models::Swin>(options);
  for (const auto& [height, width] : {std::pair{32, 32}, {5, 17}, {33, 20}, {1, 1}, {32, 32}}) {
    const auto logits = model(there(torch::randn({2, 3, height, width})));
    EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{2, 7}));
    EXPECT_TRUE(logits.isfinite().all().item<bool>());
  }
}

TEST(Swin, TrainsAfterInference) {
  auto model = random_model<models::Swin>(small_vision_options<models::SwinOptions>());
  const auto images = random_images(21);
  {
    const c10::InferenceMode inference;
    model(images);
  }
  model(images).sum().backward();
  EXPECT_TRUE(model->parameters().front().grad().defined());
}

// On a map that fits into one window a smaller window is the same attention: there is only padding in the rest.
TEST(Swin, PaddingIsNobodysSource) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(3);
  models::SwinOptions options{
      .classes = 7, .image_size = 6, .patch = 2, .window = 3, .depths = "2", .features = 8, .head_features = 4};
  auto exact = random_model<models::Swin>(options);
  options.window = 5;
  auto padded = random_model<models::Swin>(options);
  const auto from = exact->named_parameters();
  for (auto& item : padded->named_parameters()) {
    const auto& value = from[item.key()];
    if (!item.key().ends_with("table")) {
      item.value().copy_(value);
      continue;
    }
    // Distances -2 .. 2 are the middle of -4 .. 4.
    item.value().view({9, 9, 2}).slice(0, 2, 7).slice(1, 2, 7).copy_(value.view({5, 5, 2}));
  }
  const auto images = random_images(6);
  expect_close(padded(images), exact(images));
}

TEST(ResNet, APoolingStrideTakesTheConvolutionsPlace) {
  const torch::NoGradGuard no_grad;
  for (const char* mixer : {"context_pool", "depthwise", "average"}) {
    auto options = small_vision_options<models::ResNetOptions>();
    options.mixer = mixer;
    options.pool_stride = 2;
    auto model = random_model<models::ResNet>(options);
    const auto [logits, windows] = model->forward_with_windows(random_images(15));
    EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{2, 7}));
    if (windows.empty()) continue;
    EXPECT_EQ(windows[0].sigma.sizes(), (std::vector<int64_t>{2, 8, 8}));
    EXPECT_EQ(windows[0].log_weight.sizes(), (std::vector<int64_t>{2, 15, 15}));
    EXPECT_EQ(windows[2].sigma.sizes(), (std::vector<int64_t>{2, 4, 4}));  // the last stage has nothing to halve for
  }
}

TEST(VisionModels, StochasticDepthDropsWholeImagesAndKeepsTheMean) {
  torch::manual_seed(5);
  const auto ones = torch::ones({20'000, 2, 3});
  const auto dropped = models::drop_path(ones, 0.3, /*training=*/true);
  EXPECT_TRUE(torch::equal(dropped.amin({1, 2}), dropped.amax({1, 2})));
  EXPECT_NEAR(dropped.mean().item<double>(), 1, 0.02);
  EXPECT_NEAR((dropped == 0).to(torch::kFloat32).mean().item<double>(), 0.3, 0.02);
  EXPECT_TRUE(torch::equal(models::drop_path(ones, 0.3, /*training=*/false), ones));
  EXPECT_EQ(models::drop_probability(0.5, 0, 12), 0);
  EXPECT_EQ(models::drop_probability(0.5, 11, 12), 0.5);
}

TEST(VisionModels, TheRecipesInitialWeights) {
  torch::manual_seed(6);
  const auto deviation = [](const Tensor& t) { return t.std().item<double>(); };
  const models::VisionTransformer vit_model(vit("cp-vit-cifar"));
  const auto of_vit = vit_model->named_parameters();
  EXPECT_NEAR(deviation(of_vit["pos_embed"]), 0.02, 0.001);
  EXPECT_NEAR(deviation(of_vit["blocks.3.attn.qkv.weight"]), 0.02, 0.001);
  EXPECT_EQ(of_vit["blocks.3.mlp.fc1.bias"].abs().max().item<double>(), 0);
  EXPECT_NEAR(of_vit["blocks.2.context_pool.predictor.conv1.weight"].abs().max().item<double>(),
              1 / std::sqrt(192 * 9.0), 1e-4);  // torch's own rule
  const models::ResNet cifar(resnet("resnet-20"));
  EXPECT_NEAR(deviation(cifar->named_parameters()["layer3.1.conv2.weight"]), std::sqrt(2.0 / (64 * 9)), 0.002);
  auto options = small_vision_options<models::ResNetOptions>();
  options.zero_last_norm = true;
  EXPECT_EQ(models::ResNet(options)->named_parameters()["layer2.1.bn2.weight"].abs().sum().item<double>(), 0);
}

TEST(VisionModels, TokensTablesNormsAndBiasesHaveNoDecay) {
  const auto two = torch::zeros({2, 2}), one = torch::zeros({2});
  EXPECT_TRUE(models::no_decay("norm.weight", one));
  EXPECT_TRUE(models::no_decay("pos_embed", two));
  EXPECT_TRUE(models::no_decay("cls_token", two));
  EXPECT_TRUE(models::no_decay("dist_token", two));
  EXPECT_TRUE(models::no_decay("layers.0.blocks.1.attn.relative_position_bias_table", two));
  EXPECT_FALSE(models::no_decay("head.weight", two));
  EXPECT_FALSE(models::no_decay("blocks.0.context_pool.predictor.conv1.weight", two));
}

TEST(ForeignWeights, ThatDoNotFitAreRefusedAndNothingIsChanged) {
  models::VisionTransformer model(small_vision_options<models::VisionTransformerOptions>());
  const auto before = model->named_parameters()["norm.weight"].clone();
  models::ForeignTensors tensors;
  for (const auto& item : model->named_parameters()) tensors.emplace_back(item.key(), item.value().detach() + 1);
  tensors.emplace_back("fc_norm.weight", torch::zeros(3));
  try {
    models::load_foreign(model, tensors, {.who = "a.safetensors"});
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_EQ(std::string(error.what_without_backtrace()),
              "a.safetensors: not the weights of this vision transformer (names of timm): unexpected fc_norm.weight");
  }
  EXPECT_TRUE(torch::equal(model->named_parameters()["norm.weight"], before));
  tensors.pop_back();
  EXPECT_EQ(models::load_foreign(*model, tensors).source, "timm");
  EXPECT_TRUE(torch::equal(model->named_parameters()["norm.weight"], before + 1));
  torch::nn::Linear other(2, 2);
  EXPECT_THROW(models::load_foreign(*other, tensors), c10::ValueError);
}

TEST(VisionModels, WhatCannotBeBuiltOrReadIsRefused) {
  auto options = small_vision_options<models::VisionTransformerOptions>();
  options.image_size = 13;
  EXPECT_THROW(models::VisionTransformer{options}, c10::ValueError);
  options.image_size = 12;
  for (auto* size : {&options.layers, &options.features, &options.feedforward}) {  // as a damaged file might ask
    const auto kept = std::exchange(*size, int64_t{1} << 40);
    EXPECT_THROW(models::VisionTransformer{options}, c10::ValueError);
    EXPECT_THROW(models::cost(options), c10::ValueError);
    *size = kept;
  }
  auto of_swin = small_vision_options<models::SwinOptions>();
  for (const char* depths : {"", "2,,2", "2,", "a", "0", "1,1,1,1,1,1,1", "99999999999999999999"}) {
    of_swin.depths = depths;
    EXPECT_THROW(models::Swin{of_swin}, c10::ValueError) << depths;
  }
  auto of_resnet = small_vision_options<models::ResNetOptions>();
  of_resnet.pool_stride = 2;
  EXPECT_THROW(models::ResNet{of_resnet}, c10::ValueError);
  models::ResNet model(small_vision_options<models::ResNetOptions>());
  EXPECT_THROW(model(torch::randn({3, 16, 16})), c10::ValueError);
  EXPECT_THROW(model(torch::zeros({1, 3, 16, 16}, torch::kUInt8)), c10::ValueError);
}

}  // namespace
}  // namespace contextpool::testing
