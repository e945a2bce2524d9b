#include "contextpool/models/resnet.h"

#include <algorithm>

#include "base/words.h"
#include "models/vision_cost.h"
#include "models/vision_parts.h"

namespace contextpool::models {
namespace {

using torch::Tensor;

constexpr const char* kWho = "ResNet";
constexpr int64_t kColours = 3;
constexpr int64_t kMostStages = 6;
constexpr int64_t kExpansion = 4;  // of a bottleneck's outputs over its inside

void check_options(const ResNetOptions& o) {
  check_positive(kWho, "classes", o.classes, kMostClasses);
  check_positive(kWho, "image_size", o.image_size);
  check_positive(kWho, "features", o.features);
  check_share(kWho, "dropout", o.dropout);
  check_share(kWho, "stochastic_depth", o.stochastic_depth);
  check_word(kWho, "kind", o.kind, {"cifar", "imagenet"});
  check_word(kWho, "block", o.block, {"basic", "bottleneck"});
  TORCH_CHECK_VALUE(o.kind == "imagenet" || o.block == "basic", kWho, ": the CIFAR kind has basic blocks, not ",
                    o.block);
  TORCH_CHECK_VALUE(o.kind == "imagenet" || o.features % 2 == 0, kWho,
                    ": the CIFAR kind's shortcuts need an even number of features, but there are ", o.features);
  const auto stages = static_cast<int64_t>(parse_depths(kWho, o.depths, 1, kMostStages).size());
  TORCH_CHECK_VALUE(o.mixer_stages >= 0 && o.mixer_stages <= stages, kWho, ": mixer_stages must be from 0 to the ",
                    stages, " stages, but is ", o.mixer_stages);
  TORCH_CHECK_VALUE(o.pool_stride == 1 || o.pool_stride == 2, kWho, ": pool_stride must be 1 or 2, but is ",
                    o.pool_stride);
  TORCH_CHECK_VALUE(o.pool_stride == 1 || o.mixer != "none", kWho,
                    ": pool_stride 2 needs a mixer that takes the convolution's place");
}

int64_t half(int64_t size) { return (size + 1) / 2; }

// A stage, and the map [features, side, side] (at image_size) that it makes of [inputs, ...].
struct Stage {
  int64_t number = 0, depth = 0, first_block = 0, blocks = 0;  // first_block of blocks: its number in the whole model
  int64_t inputs = 0, inside = 0, features = 0;
  int64_t stride = 1;      // of its first block
  int64_t side = 0;        // of its maps
  int64_t end_stride = 0;  // of the mixer at its end; 0: there is none
};

std::vector<Stage> stages_of(const ResNetOptions& o) {
  const auto depths = parse_depths(kWho, o.depths, 1, kMostStages);
  const auto expansion = o.block == "bottleneck" ? kExpansion : 1;
  Stage stage{.inputs = o.features, .inside = o.features, .side = o.image_size};
  if (o.kind == "imagenet") stage.side = half(half(stage.side));
  for (const auto depth : depths) stage.blocks += depth;
  std::vector<Stage> all;
  bool halved = false;  // by the mixer before
  for (const auto depth : depths) {
    const bool last = stage.number + 1 == static_cast<int64_t>(depths.size());
    const bool mixes = o.mixer != "none" && stage.number < o.mixer_stages;
    stage.depth = depth;
    stage.features = stage.inside * expansion;
    stage.stride = stage.number > 0 && !halved ? 2 : 1;
    if (stage.stride == 2) stage.side = half(stage.side);
    stage.end_stride = !mixes ? 0 : last ? 1 : o.pool_stride;
    all.push_back(stage);
    halved = stage.end_stride == 2;
    if (halved) stage.side = half(stage.side);
    stage.number += 1;
    stage.first_block += depth;
    stage.inputs = stage.features;
    stage.inside *= 2;
  }
  return all;
}

MapMixer::Options mixer_options(const ResNetOptions& o, const Stage& stage) {
  auto options = place_options(o, stage.features, stage.side, stage.side, stage.number, stage.end_stride);
  if (o.mixer == "average" && stage.end_stride == 1) options.mixer.kind = "none";  // there is nothing to halve
  return options;
}

torch::nn::Conv2d convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

}  // namespace

class ResidualBlockImpl : public torch::nn::Module {
 public:
  // The i-th of its stage.
  ResidualBlockImpl(const ResNetOptions& o, const Stage& stage, int64_t i)
      : bottleneck_(o.block == "bottleneck"),
        parameters_in_shortcut_(o.kind == "imagenet"),
        stride_(i == 0 ? stage.stride : 1),
        new_features_(stage.features - (i == 0 ? stage.inputs : stage.features)),
        drop_(drop_probability(o.stochastic_depth, stage.first_block + i, stage.blocks)) {
    const auto in = i == 0 ? stage.inputs : stage.features;
    if (bottleneck_) {
      add(in, stage.inside, 1, 1);
      add(stage.inside, stage.inside, 3, stride_);
      add(stage.inside, stage.features, 1, 1);
    } else {
      add(in, stage.features, 3, stride_);
      add(stage.features, stage.features, 3, 1);
    }
    if (!parameters_in_shortcut_ || (stride_ == 1 && new_features_ == 0)) return;
    downsample_ = register_module("downsample", torch::nn::Sequential());
    downsample_->push_back(convolution(in, stage.features, 1, stride_));
    downsample_->push_back(torch::nn::BatchNorm2d(stage.features));
  }

  Tensor forward(const Tensor& x) {
    auto branch = x;
    for (std::size_t i = 0; i < convolutions_.size(); ++i) {
      branch = norms_[i](convolutions_[i](branch));
      if (i + 1 < convolutions_.size()) branch = torch::relu_(branch);
    }
    auto sum = shortcut(x) + drop_path(branch, drop_, is_training());
    return torch::relu_(sum);
  }

  void zero_last_norm() { norms_.back()->weight.zero_(); }

 private:
  void add(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    const auto number = std::to_string(convolutions_.size() + 1);
    convolutions_.emplace_back(register_module("conv" + number, convolution(in, out, kernel, stride)));
    norms_.emplace_back(register_module("bn" + number, torch::nn::BatchNorm2d(out)));
  }

  Tensor shortcut(const Tensor& x) {
    if (downsample_) return downsample_->forward(x);
    auto near = stride_ == 1 ? x : x.slice(2, 0, std::nullopt, stride_).slice(3, 0, std::nullopt, stride_);
    if (new_features_ == 0) return near;
    return torch::constant_pad_nd(near, {0, 0, 0, 0, new_features_ / 2, new_features_ - new_features_ / 2});
  }

  bool bottleneck_, parameters_in_shortcut_;
  int64_t stride_, new_features_;
  double drop_;
  std::vector<torch::nn::Conv2d> convolutions_;  // conv1, conv2, conv3
  std::vector<torch::nn::BatchNorm2d> norms_;    // bn1, bn2, bn3
  torch::nn::Sequential downsample_{nullptr};
};

// What stands at the end of a stage.
class StageEndImpl : public torch::nn::Module {
 public:
  StageEndImpl(const ResNetOptions& o, const Stage& stage) {
    if (stage.end_stride > 0) mixer_ = MapMixer(*this, mixer_options(o, stage));
  }
  Tensor forward(const Tensor& x, std::vector<nn::Windows>* windows) { return mixer_.forward(x, windows); }
  void reset_mixer() { mixer_.reset_parameters(); }

 private:
  MapMixer mixer_;
};

ResNetImpl::ResNetImpl(ResNetOptions options) : options_(std::move(options)) {
  const auto& o = options_;
  check_options(o);
  conv1_ = register_module(
      "conv1", o.kind == "cifar" ? convolution(kColours, o.features, 3) : convolution(kColours, o.features, 7, 2));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(o.features));
  const auto stages = stages_of(o);
  const auto ends = register_module("ends", torch::nn::ModuleList());
  for (const auto& stage : stages) {
    const auto layer = register_module("layer" + std::to_string(stage.number + 1), torch::nn::ModuleList());
    auto& blocks = stages_.emplace_back();
    for (int64_t i = 0; i < stage.depth; ++i) {
      blocks.push_back(std::make_shared<ResidualBlockImpl>(o, stage, i));
      layer->push_back(blocks.back());
    }
    ends_.push_back(std::make_shared<StageEndImpl>(o, stage));
    ends->push_back(ends_.back());
  }
  dropout_ = register_module("drop", torch::nn::Dropout(o.dropout));
  fc_ = register_module("fc", nn::Linear(stages.back().features, o.classes));
  reset_parameters();
}

void ResNetImpl::reset_parameters() {
  const torch::NoGradGuard no_grad;
  const bool cifar = options_.kind == "cifar";
  const auto kaiming = [&](Tensor& weight) {
    if (cifar) {
      torch::nn::init::kaiming_normal_(weight, 0, torch::kFanIn, torch::kReLU);
    } else {
      torch::nn::init::kaiming_normal_(weight, 0, torch::kFanOut, torch::kReLU);
    }
  };
  for (const auto& item : named_modules("", /*include_self=*/false)) {
    if (item.key().starts_with("ends.")) continue;  // mixers draw theirs themselves
    if (auto* norm = item.value()->as<torch::nn::BatchNorm2d>()) {
      norm->reset_parameters();
    } else if (auto* weights = item.value()->as<torch::nn::Conv2d>()) {
      kaiming(weights->weight);
    } else if (auto* linear = item.value()->as<torch::nn::Linear>()) {
      linear->reset_parameters();
    }
  }
  if (cifar) {
    kaiming(fc_->weight);
    fc_->bias.zero_();
  }
  for (const auto& stage : stages_) {
    for (const auto& block : stage) {
      if (options_.zero_last_norm) block->zero_last_norm();
    }
  }
  for (const auto& end : ends_) end->reset_mixer();
}

Tensor ResNetImpl::run(const Tensor& images, std::vector<nn::Windows>* windows) {
  check_images(kWho, images);
  auto x = bn1_(conv1_(images));
  torch::relu_(x);
  if (options_.kind == "imagenet") x = torch::max_pool2d(x, 3, 2, 1);
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    for (auto& block : stages_[s]) x = block->forward(x);
    x = ends_[s]->forward(x, windows);
  }
  return fc_(dropout_(x.mean(torch::IntArrayRef{2, 3})));
}

Tensor ResNetImpl::forward(const Tensor& images) { return run(images, nullptr); }

LogitsAndWindows ResNetImpl::forward_with_windows(const Tensor& images) {
  LogitsAndWindows all;
  all.first = run(images, &all.second);
  return all;
}

VisionCost cost(const ResNetOptions& o) {
  check_options(o);
  Counter counter;
  const auto convolve = [&](int64_t in, int64_t out, int64_t kernel, int64_t side) {
    counter.convolution(in, out, kernel, side * side, /*bias=*/false);
    counter.norm(out);
  };
  const bool cifar = o.kind == "cifar";
  convolve(kColours, o.features, cifar ? 3 : 7, cifar ? o.image_size : half(o.image_size));
  const auto stages = stages_of(o);
  for (const auto& stage : stages) {
    for (int64_t i = 0; i < stage.depth; ++i) {
      const auto in = i == 0 ? stage.inputs : stage.features;
      const auto before = i == 0 && stage.stride == 2 ? 2 * stage.side : stage.side;
      if (o.block == "bottleneck") {
        convolve(in, stage.inside, 1, before);
        convolve(stage.inside, stage.inside, 3, stage.side);
        convolve(stage.inside, stage.features, 1, stage.side);
      } else {
        convolve(in, stage.features, 3, stage.side);
        convolve(stage.features, stage.features, 3, stage.side);
      }
      const bool changes = i == 0 && (stage.stride == 2 || in != stage.features);
      if (changes && !cifar) convolve(in, stage.features, 1, stage.side);
    }
    if (stage.end_stride > 0) counter.mixer(mixer_options(o, stage), stage.side, stage.side);
  }
  counter.linear(stages.back().features, o.classes, 1);
  return counter.cost();
}

const std::vector<NamedResNet>& resnets() {
  static const auto models = [] {
    std::vector<NamedResNet> all;
    const auto add = [&](const std::string& name, const std::string& summary, ResNetOptions options) {
      for (const std::string prefix : kPrefixes) {
        options.mixer = mixer_of(prefix);
        all.push_back({prefix + name, summary_of(prefix, summary), options});
      }
    };
    for (const auto& [layers, depths] :
         {std::pair{"20", "3,3,3"}, {"32", "5,5,5"}, {"44", "7,7,7"}, {"46", "7,8,7"}, {"56", "9,9,9"}}) {
      add(std::string("resnet-") + layers, std::string("ResNet of ") + layers + " layers for images of 32",
          {.depths = depths});
    }
    const nn::ContextPoolOptions pool{.ratio = 0.05, .initial_sigma = 0.5, .hidden = 16};
    for (const auto& [layers, depths] : {std::pair{"18", "2,2,2,2"}, {"50", "3,4,6,3"}, {"101", "3,4,23,3"}}) {
      add(std::string("resnet-") + layers, std::string("ResNet of ") + layers + " layers",
          {.classes = 1000,
           .image_size = 224,
           .kind = "imagenet",
           .block = std::string(layers) == "18" ? "basic" : "bottleneck",
           .depths = depths,
           .features = 64,
           .pool = pool});
    }
    return all;
  }();
  return models;
}

}  // namespace contextpool::models
