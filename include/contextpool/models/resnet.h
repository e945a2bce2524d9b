// ResNet (He et al. 2016): for CIFAR, three stages of basic blocks after a 3 x 3 convolution, with shortcuts that have
// no parameters (option A: every second pixel, new channels 0); for ImageNet, four stages of basic or bottleneck blocks
// after a 7 x 7 convolution and max pooling, with 1 x 1 convolutions where shapes differ; the stride is in the 3 x 3.
//
//   x <- relu(shortcut(x) + BN(conv(relu(BN(conv(x))))));   at the end of a stage x <- Mix(x);   logits = fc(mean(x))
//
// The mixer stands at the ends of the first `mixer_stages` stages, with stride 1; with pool_stride 2 it halves the map
// in place of the next stage's strided convolution.
// Tensor names are torchvision's and timm's: conv1 bn1 layerS.B.{conv1,bn1,conv2,bn2,conv3,bn3,downsample.0,
// downsample.1} fc, and ends.S.{context_pool,depthwise}.* for the mixers, S from 0.
#pragma once

#include <torch/torch.h>

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "contextpool/models/vision.h"
#include "contextpool/nn/linear.h"

namespace contextpool::models {

struct ResNetOptions {
  int64_t classes = 10;
  int64_t image_size = 32;
  std::string kind = "cifar";
  std::string block = "basic";
  std::string depths = "7,7,7";
  int64_t features = 16;
  double dropout = 0;
  double stochastic_depth = 0;
  bool zero_last_norm = false;
  std::string mixer = "none";
  int64_t mixer_stages = 3;
  int64_t pool_stride = 1;
  std::string mixer_residual = {};
  int64_t mixer_taps = 0;
  int64_t mixer_rank = 15;
  int64_t mixer_heads = 0;
  nn::ContextPoolOptions pool{.ratio = 0.05, .initial_sigma = 0.5, .hidden = 20};  // the model sets features and layer
};

// Calls f(name, value, help) for every option, value being a reference into `options`.
template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, ResNetOptions>
void for_each_option(Options& options, F f) {
  f("classes", options.classes, "labels");
  f("image_size", options.image_size, "usual height and width of the images; any other works too");
  f("kind", options.kind, "cifar or imagenet");
  f("block", options.block, "basic or bottleneck");
  f("depths", options.depths, "blocks of each stage");
  f("features", options.features, "channels of the first stage, inside its blocks; each next one has twice as many");
  f("dropout", options.dropout, "before the last layer");
  f("stochastic_depth", options.stochastic_depth,
    "share of an image's branches dropped in the last block; grows from 0");
  f("zero_last_norm", options.zero_last_norm, "start each branch's last norm at 0");
  f("mixer_stages", options.mixer_stages, "the mixer stands at the end of the first so many stages");
  f("pool_stride", options.pool_stride,
    "1, or 2: the mixer (context_pool, depthwise or average) in place of the next stage's strided convolution");
  for_each_mixer_option(options, f);
}

class ResidualBlockImpl;
class StageEndImpl;

class ResNetImpl : public ImageClassifier {
 public:
  explicit ResNetImpl(ResNetOptions options);

  // images [B, 3, H, W] -> logits [B, classes].
  torch::Tensor forward(const torch::Tensor& images) override;
  LogitsAndWindows forward_with_windows(const torch::Tensor& images) override;

  // Convolutions by Kaiming's rule (normal, for ReLU; over the outputs for ImageNet as torchvision does, over the
  // inputs for CIFAR, where the last layer gets it too), norms 1 and 0, mixers by their own rule:
  // initial_sigma holds.
  void reset_parameters();

  const ResNetOptions& options() const { return options_; }

 private:
  torch::Tensor run(const torch::Tensor& images, std::vector<nn::Windows>* windows);

  ResNetOptions options_;
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::vector<std::vector<std::shared_ptr<ResidualBlockImpl>>> stages_;  // layer1, layer2, ...
  std::vector<std::shared_ptr<StageEndImpl>> ends_;
  torch::nn::Dropout dropout_{nullptr};
  nn::Linear fc_{nullptr};
};
TORCH_MODULE(ResNet);

// At image_size.
VisionCost cost(const ResNetOptions& options);

struct NamedResNet {
  std::string name;
  std::string summary;  // one line for a list
  ResNetOptions options;
};

// resnet-{20,32,44,46,56} for CIFAR and resnet-{18,50,101}, each also as cp-... with ContextPool and dw-... with a
// depthwise convolution in its place.
const std::vector<NamedResNet>& resnets();

}  // namespace contextpool::models
