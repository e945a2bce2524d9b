// Swin transformer (Liu et al. 2021): attention in windows of a map, moved by half a window in every second block; the
// map is halved between stages.
//
//   x <- x + Mix(WindowAttn(LN x)),   x <- x + MLP(LN x);   between stages x <- reduction(LN([x_00 x_10 x_01 x_11]))
//
// Any image size: images are padded to whole patches, maps to whole windows and to even sides; no pixel
// sees padding, so each pixel sees exactly those of its window that exist. (timm and torchvision let padding take part
// in attention, so at such sizes they differ from this formula, and from each other.) Along a side that fits into one
// window, nothing is moved.
// The mixer works on the whole map: after the windows are put back, un-shifted and un-padded.
// Tensor names are Microsoft's: patch_embed.{proj,norm} layers.S.blocks.B.{norm1,attn.{qkv,proj,
// relative_position_bias_table},norm2,mlp.fc1,mlp.fc2} layers.S.downsample.{norm,reduction} norm head, and
// layers.S.blocks.B.{context_pool,depthwise}.* for the mixer.
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

struct SwinOptions {
  int64_t classes = 1000;
  int64_t image_size = 224;
  int64_t patch = 4;
  int64_t window = 7;
  std::string depths = "2,2,6,2";
  int64_t features = 96;
  int64_t head_features = 32;
  int64_t feedforward_ratio = 4;
  double dropout = 0;
  double attention_dropout = 0;
  double stochastic_depth = 0;
  std::string mixer = "none";
  std::string mixer_residual = {};
  int64_t mixer_taps = 0;
  int64_t mixer_rank = 15;
  int64_t mixer_heads = 0;
  nn::ContextPoolOptions pool{.ratio = 0.1, .initial_sigma = 1, .hidden = 12};  // the model sets features and layer
};

// Calls f(name, value, help) for every option, value being a reference into `options`.
template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, SwinOptions>
void for_each_option(Options& options, F f) {
  f("classes", options.classes, "labels");
  f("image_size", options.image_size, "usual height and width of the images; any other works too");
  f("patch", options.patch, "height and width of a patch");
  f("window", options.window, "height and width of attention's windows, in patches");
  f("depths", options.depths, "blocks of each stage");
  f("features", options.features, "channels of the first stage; each next one has twice as many");
  f("head_features", options.head_features, "channels of an attention head");
  f("feedforward_ratio", options.feedforward_ratio, "channels inside the feed-forward branch, over those outside");
  f("dropout", options.dropout, "of embeddings, branches and inside the feed-forward");
  f("attention_dropout", options.attention_dropout, "of attention weights");
  f("stochastic_depth", options.stochastic_depth,
    "share of an image's branches dropped in the last block; grows from 0");
  for_each_mixer_option(options, f);
}

class SwinStageImpl;

class SwinImpl : public ImageClassifier {
 public:
  explicit SwinImpl(SwinOptions options);

  // images [B, 3, H, W] -> logits [B, classes].
  torch::Tensor forward(const torch::Tensor& images) override;
  LogitsAndWindows forward_with_windows(const torch::Tensor& images) override;

  // Linear weights and relative position tables N(0, 0.02), biases 0, norms 1 and 0, convolutions by torch's own rule,
  // mixers by theirs: initial_sigma holds.
  void reset_parameters();

  const SwinOptions& options() const { return options_; }

 private:
  torch::Tensor run(const torch::Tensor& images, std::vector<nn::Windows>* windows);

  SwinOptions options_;
  torch::nn::Conv2d proj_{nullptr};           // patch_embed.proj
  torch::nn::LayerNorm patch_norm_{nullptr};  // patch_embed.norm
  torch::nn::Dropout dropout_{nullptr};
  std::vector<std::shared_ptr<SwinStageImpl>> stages_;
  torch::nn::LayerNorm norm_{nullptr};
  nn::Linear head_{nullptr};
};
TORCH_MODULE(Swin);

// At image_size.
VisionCost cost(const SwinOptions& options);

struct NamedSwin {
  std::string name;
  std::string summary;  // one line for a list
  SwinOptions options;
};

// swin-{tiny,small,base}, each also as cp-... with ContextPool and dw-... with a depthwise convolution in its place.
const std::vector<NamedSwin>& swins();

}  // namespace contextpool::models
