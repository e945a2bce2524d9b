// ViT (Dosovitskiy et al. 2021) and DeiT (Touvron et al. 2021): a pre-norm transformer over the patches of an image.
//
//   x_0 = [cls; dist; patches] + pos,   x <- x + Mix(Attn(LN x)),   x <- x + MLP(LN x),   logits = head(LN(x)_cls)
//
// The mixer works on the grid of patches; class and distillation tokens pass it by: they are neither source nor target.
// So the last block's mixer has no say in the logits where the head reads the class token (it is built all the same, as
// the paper counts it); with readout "mean" the head reads mean(LN(x)_patches), and it has.
// Tensor names are timm's: cls_token dist_token pos_embed patch_embed.proj blocks.I.{norm1,attn.qkv,attn.proj,norm2,
// mlp.fc1,mlp.fc2} norm head head_dist, and blocks.I.{context_pool,depthwise}.* for the mixer.
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

struct VisionTransformerOptions {
  int64_t classes = 1000;
  int64_t image_size = 224;
  int64_t patch = 16;
  int64_t layers = 12;
  int64_t features = 768;
  int64_t heads = 12;
  int64_t feedforward = 3072;
  bool distilled = false;
  std::string readout = "token";
  double dropout = 0;
  double attention_dropout = 0;
  double stochastic_depth = 0;
  std::string mixer = "none";
  std::string placement = "after_attention";
  std::string windows = "grid";
  std::string mixer_residual = {};
  int64_t mixer_taps = 0;
  int64_t mixer_rank = 15;
  int64_t mixer_heads = 0;
  nn::ContextPoolOptions pool{.ratio = 0.1, .initial_sigma = 1, .hidden = 24};  // the model sets features and layer
};

// Calls f(name, value, help) for every option, value being a reference into `options`.
template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, VisionTransformerOptions>
void for_each_option(Options& options, F f) {
  f("classes", options.classes, "labels");
  f("image_size", options.image_size, "height and width of the images, a multiple of patch");
  f("patch", options.patch, "height and width of a patch");
  f("layers", options.layers, "transformer blocks");
  f("features", options.features, "channels of a token");
  f("heads", options.heads, "attention heads");
  f("feedforward", options.feedforward, "channels inside the feed-forward branch");
  f("distilled", options.distilled, "a second token and head, which learn from a teacher");
  f("readout", options.readout, "what the head reads: token, the class token, or mean, the mean of the patches");
  f("dropout", options.dropout, "of embeddings, branches and inside the feed-forward");
  f("attention_dropout", options.attention_dropout, "of attention weights");
  f("stochastic_depth", options.stochastic_depth,
    "share of an image's branches dropped in the last block; grows from 0");
  f("placement", options.placement, "of the mixer: after_attention, after_block or before_attention");
  f("windows", options.windows, "of the mixer: grid, 2-D, or row, 1-D over the flattened grid");
  for_each_mixer_option(options, f);
}

class VisionBlockImpl;

class VisionTransformerImpl : public ImageClassifier {
 public:
  explicit VisionTransformerImpl(VisionTransformerOptions options);

  // images [B, 3, image_size, image_size] -> logits [B, classes]: of a distilled model the mean of its two heads. In
  // training mode a distilled model gives both, [B, 2, classes]: the class token's, then the distillation token's.
  torch::Tensor forward(const torch::Tensor& images) override;
  LogitsAndWindows forward_with_windows(const torch::Tensor& images) override;

  // Linear weights, tokens and positions N(0, 0.02) (torch's trunc_normal_ cuts at +-2, which is 100 deviations away),
  // biases 0, norms 1 and 0, convolutions by torch's own rule, mixers by theirs: initial_sigma holds.
  void reset_parameters();

  const VisionTransformerOptions& options() const { return options_; }
  int64_t grid() const { return options_.image_size / options_.patch; }
  int64_t prefix_tokens() const { return options_.distilled ? 2 : 1; }

 private:
  torch::Tensor run(const torch::Tensor& images, std::vector<nn::Windows>* windows);

  VisionTransformerOptions options_;
  torch::Tensor cls_token_, dist_token_, pos_embed_;
  torch::nn::Conv2d proj_{nullptr};  // patch_embed.proj
  torch::nn::Dropout dropout_{nullptr};
  std::vector<std::shared_ptr<VisionBlockImpl>> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  nn::Linear head_{nullptr}, head_dist_{nullptr};
};
TORCH_MODULE(VisionTransformer);

VisionCost cost(const VisionTransformerOptions& options);

struct NamedVisionTransformer {
  std::string name;
  std::string summary;  // one line for a list
  VisionTransformerOptions options;
};

// vit-{tiny,small,base,large}-patch{2,4,16}, deit-{small,base}[-distilled] and vit-cifar, each also as cp-... with
// ContextPool and dw-... with a depthwise convolution in its place. Patches of 2 and 4 are for images of 32.
const std::vector<NamedVisionTransformer>& vision_transformers();

}  // namespace contextpool::models
