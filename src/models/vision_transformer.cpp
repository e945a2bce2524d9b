#include "contextpool/models/vision_transformer.h"

#include "base/words.h"
#include "models/vision_cost.h"
#include "models/vision_parts.h"

namespace contextpool::models {
namespace {

using torch::Tensor;

constexpr const char* kWho = "vision transformer";
constexpr double kEpsilon = 1e-6;  // of its layer norms
constexpr int64_t kColours = 3;

void check_options(const VisionTransformerOptions& o) {
  check_positive(kWho, "classes", o.classes, kMostClasses);
  for (const auto& [name, value] : {std::pair{"image_size", o.image_size},
                                    {"patch", o.patch},
                                    {"features", o.features},
                                    {"heads", o.heads},
                                    {"feedforward", o.feedforward}}) {
    check_positive(kWho, name, value);
  }
  check_positive(kWho, "layers", o.layers, kMostLayers);
  check_share(kWho, "dropout", o.dropout);
  check_share(kWho, "attention_dropout", o.attention_dropout);
  check_share(kWho, "stochastic_depth", o.stochastic_depth);
  TORCH_CHECK_VALUE(o.image_size % o.patch == 0, kWho, ": image_size must be a multiple of the patch, ", o.patch,
                    ", but is ", o.image_size);
  TORCH_CHECK_VALUE(o.features % o.heads == 0, kWho, ": heads must divide the ", o.features, " features, but are ",
                    o.heads);
  check_word(kWho, "placement", o.placement, {"after_attention", "after_block", "before_attention"});
  check_word(kWho, "readout", o.readout, {"token", "mean"});
  TORCH_CHECK_VALUE(!o.distilled || o.readout == "token", kWho,
                    ": a distilled model reads its two tokens, not the mean");
  check_word(kWho, "windows", o.windows, {"grid", "row"});
}

MapMixer::Options mixer_options(const VisionTransformerOptions& o, int64_t layer) {
  const auto side = o.image_size / o.patch;
  return place_options(o, o.features, side, side, layer, /*stride=*/1, /*row=*/o.windows == "row");
}

torch::nn::LayerNorm layer_norm(int64_t features) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({features}).eps(kEpsilon));
}

}  // namespace

class VisionBlockImpl : public torch::nn::Module {
 public:
  VisionBlockImpl(const VisionTransformerOptions& o, int64_t layer)
      : options_(o), drop_(drop_probability(o.stochastic_depth, layer, o.layers)) {
    norm1_ = register_module("norm1", layer_norm(o.features));
    const auto attention = register_module("attn", std::make_shared<torch::nn::Module>());
    qkv_ = attention->register_module("qkv", nn::Linear(o.features, 3 * o.features));
    proj_ = attention->register_module("proj", nn::Linear(o.features, o.features));
    mixer_ = MapMixer(*this, mixer_options(o, layer));
    norm2_ = register_module("norm2", layer_norm(o.features));
    mlp_ = register_module("mlp", Mlp(o.features, o.feedforward, o.dropout));
  }

  // x [B, prefix + side * side, features]
  Tensor forward(const Tensor& x, int64_t prefix, int64_t side, std::vector<nn::Windows>* windows) {
    const auto normed = norm1_(x);
    const auto map_of = [&](const Tensor& tokens) {
      return tokens.slice(1, prefix).transpose(1, 2).unflatten(2, {side, side});
    };
    const auto mix = [&](const char* placement, const Tensor& tokens) {
      if (!mixer_.active() || options_.placement != placement) return tokens;
      // One copy, which predictor and pooling would both make of a map with gaps.
      const auto patches = map_of(tokens).contiguous(torch::MemoryFormat::ChannelsLast);
      const auto map = mixer_.forward(patches, windows, map_of(normed));
      return torch::cat({tokens.slice(1, 0, prefix), map.flatten(2).transpose(1, 2)}, 1);
    };
    auto branch = mix("after_attention", attend(mix("before_attention", normed)));
    branch = torch::dropout(branch, options_.dropout, is_training());
    auto y = x + drop_path(branch, drop_, is_training());
    y = y + drop_path(mlp_(norm2_(y)), drop_, is_training());
    return mix("after_block", y);
  }

  void reset_mixer() { mixer_.reset_parameters(); }

 private:
  Tensor attend(const Tensor& x) {
    const auto qkv = qkv_(x).unflatten(2, {3, options_.heads, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], /*attn_mask=*/{},
                                                    is_training() ? options_.attention_dropout : 0);
    return proj_(y.transpose(1, 2).flatten(2));
  }

  VisionTransformerOptions options_;
  double drop_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  nn::Linear qkv_{nullptr}, proj_{nullptr};  // attn.{qkv,proj}
  MapMixer mixer_;
  Mlp mlp_{nullptr};
};

VisionTransformerImpl::VisionTransformerImpl(VisionTransformerOptions options) : options_(std::move(options)) {
  const auto& o = options_;
  check_options(o);
  cls_token_ = register_parameter("cls_token", torch::zeros({1, 1, o.features}));
  if (o.distilled) dist_token_ = register_parameter("dist_token", torch::zeros({1, 1, o.features}));
  pos_embed_ = register_parameter("pos_embed", torch::zeros({1, prefix_tokens() + grid() * grid(), o.features}));
  const auto patch_embed = register_module("patch_embed", std::make_shared<torch::nn::Module>());
  proj_ = patch_embed->register_module(
      "proj", torch::nn::Conv2d(torch::nn::Conv2dOptions(kColours, o.features, o.patch).stride(o.patch)));
  dropout_ = register_module("pos_drop", torch::nn::Dropout(o.dropout));
  const auto blocks = register_module("blocks", torch::nn::ModuleList());
  for (int64_t layer = 0; layer < o.layers; ++layer) {
    blocks_.push_back(std::make_shared<VisionBlockImpl>(o, layer));
    blocks->push_back(blocks_.back());
  }
  norm_ = register_module("norm", layer_norm(o.features));
  head_ = register_module("head", nn::Linear(o.features, o.classes));
  if (o.distilled) head_dist_ = register_module("head_dist", nn::Linear(o.features, o.classes));
  reset_parameters();
}

void VisionTransformerImpl::reset_parameters() {
  const torch::NoGradGuard no_grad;
  initialise_transformer(*this);
  for (auto& parameter : parameters(/*recurse=*/false)) parameter.normal_(0, kDeviation);
  for (const auto& block : blocks_) block->reset_mixer();
}

Tensor VisionTransformerImpl::run(const Tensor& images, std::vector<nn::Windows>* windows) {
  check_images(kWho, images);
  TORCH_CHECK_VALUE(images.size(2) == options_.image_size && images.size(3) == options_.image_size, kWho,
                    ": images must be ", options_.image_size, " x ", options_.image_size, " pixels, but are ",
                    images.size(2), " x ", images.size(3), "; resize them, or build the model with another image_size");
  const auto batch = images.size(0);
  const auto patches = proj_(images).flatten(2).transpose(1, 2);
  std::vector<Tensor> tokens{cls_token_.expand({batch, -1, -1})};
  if (dist_token_.defined()) tokens.push_back(dist_token_.expand({batch, -1, -1}));
  tokens.push_back(patches);
  auto x = dropout_(torch::cat(tokens, 1) + pos_embed_);
  for (auto& block : blocks_) x = block->forward(x, prefix_tokens(), grid(), windows);
  if (options_.readout == "mean") return head_(norm_(x.slice(1, prefix_tokens())).mean(1));
  x = norm_(x.slice(1, 0, prefix_tokens()));  // of each token by itself; the patches' are not needed
  auto logits = head_(x.select(1, 0));
  if (!options_.distilled) return logits;
  const auto distilled = head_dist_(x.select(1, 1));
  return is_training() ? torch::stack({logits, distilled}, 1) : (logits + distilled) / 2;
}

Tensor VisionTransformerImpl::forward(const Tensor& images) { return run(images, nullptr); }

LogitsAndWindows VisionTransformerImpl::forward_with_windows(const Tensor& images) {
  LogitsAndWindows all;
  all.first = run(images, &all.second);
  return all;
}

VisionCost cost(const VisionTransformerOptions& o) {
  check_options(o);
  const auto side = o.image_size / o.patch, prefix = int64_t{o.distilled ? 2 : 1};
  const auto patches = side * side, tokens = patches + prefix;
  Counter counter;
  counter.table((tokens + prefix) * o.features);  // positions, and the class and distillation tokens
  counter.convolution(kColours, o.features, o.patch, patches, /*bias=*/true);
  for (int64_t layer = 0; layer < o.layers; ++layer) {
    counter.norm(o.features);
    counter.linear(o.features, 3 * o.features, tokens);
    counter.attention(tokens, tokens, o.features);
    counter.linear(o.features, o.features, tokens);
    counter.mixer(mixer_options(o, layer), side, side);
    counter.norm(o.features);
    counter.linear(o.features, o.feedforward, tokens);
    counter.linear(o.feedforward, o.features, tokens);
  }
  counter.norm(o.features);
  for (int64_t head = 0; head < prefix; ++head) counter.linear(o.features, o.classes, 1);
  return counter.cost();
}

const std::vector<NamedVisionTransformer>& vision_transformers() {
  static const auto models = [] {
    std::vector<NamedVisionTransformer> all;
    const auto add = [&](const std::string& name, const std::string& summary, VisionTransformerOptions options) {
      for (const std::string prefix : kPrefixes) {
        options.mixer = mixer_of(prefix);
        all.push_back({prefix + name, summary_of(prefix, summary), options});
      }
    };
    struct Size {
      const char* name;
      int64_t layers, features, heads;
    };
    for (const auto& size : {Size{"tiny", 12, 192, 3}, Size{"small", 12, 384, 6}, Size{"base", 12, 768, 12},
                             Size{"large", 24, 1024, 16}}) {
      for (const int64_t patch : {2, 4, 16}) {
        VisionTransformerOptions options{.patch = patch,
                                         .layers = size.layers,
                                         .features = size.features,
                                         .heads = size.heads,
                                         .feedforward = 4 * size.features};
        if (patch < 16) options.classes = 10, options.image_size = 32;
        add(std::string("vit-") + size.name + "-patch" + std::to_string(patch),
            "ViT of " + std::to_string(size.layers) + " layers, patches of " + std::to_string(patch), options);
      }
    }
    for (const bool distilled : {false, true}) {
      const std::string suffix = distilled ? "-distilled" : "", teacher = distilled ? " with a distillation token" : "";
      add("deit-small" + suffix, "DeiT of 384 features" + teacher,
          {.features = 384, .heads = 6, .feedforward = 1536, .distilled = distilled, .stochastic_depth = 0.1});
      add("deit-base" + suffix, "DeiT of 768 features" + teacher, {.distilled = distilled, .stochastic_depth = 0.1});
    }
    add("vit-cifar", "ViT of 6 layers for images of 32, patches of 2",
        {.classes = 10, .image_size = 32, .patch = 2, .layers = 6, .features = 192, .heads = 3, .feedforward = 768});
    return all;
  }();
  return models;
}

}  // namespace contextpool::models
