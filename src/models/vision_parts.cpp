#include "models/vision_parts.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "nn/names.h"

namespace contextpool::models {
namespace {

using torch::Tensor;

constexpr int64_t kMost = int64_t{1} << 24;  // far beyond any use, so that damaged options ask for no memory
constexpr int64_t kTaps = 3;

nn::ContextPoolOptions row_options(const MapMixer::Options& o) {
  auto options = o.pool;
  options.features = o.features;
  options.causal = false;
  options.layer = o.layer;
  options.usual_length = std::max<int64_t>(1, o.height * o.width);
  return options;
}

nn::ContextPool2dOptions map_options(const MapMixer::Options& o) {
  nn::ContextPool2dOptions options(o.features);
  static_cast<nn::ContextPoolOptions&>(options) = row_options(o);
  options.usual_length = std::max<int64_t>(1, (o.height + o.width) / 2);
  options.stride = {o.stride, o.stride};
  return options;
}

// What windows of a row look like on its map: [..., H W] -> [..., H, W].
Tensor on_map(const Tensor& values, int64_t height, int64_t width) {
  return values.defined() ? values.unflatten(-1, {height, width}) : values;
}

}  // namespace

bool no_decay(std::string_view name, const torch::Tensor& parameter) {
  if (parameter.dim() <= 1) return true;
  const auto leaf = name.substr(name.rfind('.') + 1);
  return leaf == "cls_token" || leaf == "dist_token" || leaf == "pos_embed" || leaf == "relative_position_bias_table";
}

MapMixer::MapMixer(torch::nn::Module& owner, Options options) : options_(std::move(options)) {
  const auto& o = options_;
  nn::check_word("Mixer", "kind", o.kind, {"none", "context_pool", "depthwise", "average"});
  nn::check_word("Mixer", "residual", o.residual, {"none", "plain"});
  TORCH_CHECK_VALUE(o.kind != "average" || o.stride > 1, "Mixer: average is for strides of 2 and more");
  if (o.kind == "context_pool" && o.row) {
    row_pool_ = owner.register_module("context_pool", nn::ContextPool1d(row_options(o)));
  } else if (o.kind == "context_pool") {
    map_pool_ = owner.register_module("context_pool", nn::ContextPool2d(map_options(o)));
  }
  if (o.kind != "depthwise") return;
  const auto taps = o.taps == 0 ? kTaps : o.taps;
  TORCH_CHECK_VALUE(taps > 0 && taps % 2 == 1, "Mixer: taps must be odd, to have a middle, but are ", taps);
  if (o.row) {
    row_depthwise_ = owner.register_module(
        "depthwise", nn::Depthwise(nn::DepthwiseOptions{.features = o.features, .taps = taps, .causal = false}));
  } else {
    const auto convolution =
        torch::nn::Conv2dOptions(o.features, o.features, taps).padding(taps / 2).stride(o.stride).groups(o.features);
    map_depthwise_ = owner.register_module("depthwise", torch::nn::Conv2d(convolution));
  }
}

Tensor MapMixer::pooled(const Tensor& x, std::vector<nn::Windows>* windows) {
  if (map_pool_) {
    if (windows == nullptr) return map_pool_(x);
    auto [y, seen] = map_pool_->forward_with_windows(x);
    windows->push_back(std::move(seen));
    return y;
  }
  const auto height = x.size(2), width = x.size(3);
  const auto row = x.flatten(2).transpose(1, 2);
  Tensor y;
  if (windows == nullptr) {
    y = row_pool_(row);
  } else {
    auto [pooled, seen] = row_pool_->forward_with_windows(row);
    y = pooled;
    windows->push_back({on_map(seen.log_weight, height, width), on_map(seen.sigma, height, width)});
  }
  return y.transpose(1, 2).unflatten(2, {height, width});
}

Tensor MapMixer::mixed(const Tensor& x, std::vector<nn::Windows>* windows) {
  if (map_pool_ || row_pool_) return pooled(x, windows);
  if (map_depthwise_) return map_depthwise_(x);
  if (row_depthwise_) {
    return row_depthwise_(x.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, {x.size(2), x.size(3)});
  }
  return torch::avg_pool2d(x, options_.stride, options_.stride, 0, /*ceil_mode=*/true);
}

Tensor MapMixer::forward(const Tensor& x, std::vector<nn::Windows>* windows) {
  if (!active()) return x;
  const auto y = mixed(x, windows);
  if (options_.residual == "none") return y;
  const auto step = options_.stride;
  return (step == 1 ? x : x.slice(2, 0, std::nullopt, step).slice(3, 0, std::nullopt, step)) + y;
}

void MapMixer::finish_initialisation() {
  if (row_pool_) row_pool_->reset_sizes();
  if (map_pool_) map_pool_->reset_sizes();
}

MlpImpl::MlpImpl(int64_t features, int64_t hidden, double dropout) : dropout_(dropout) {
  fc1_ = register_module("fc1", torch::nn::Linear(features, hidden));
  fc2_ = register_module("fc2", torch::nn::Linear(hidden, features));
}

Tensor MlpImpl::forward(const Tensor& x) {
  const auto hidden = torch::dropout(torch::gelu(fc1_(x)), dropout_, is_training());
  return torch::dropout(fc2_(hidden), dropout_, is_training());
}

Tensor drop_path(const Tensor& branch, double probability, bool training) {
  if (!training || probability == 0) return branch;
  std::vector<int64_t> shape(branch.dim(), 1);
  shape[0] = branch.size(0);
  const double kept = 1 - probability;
  return branch * torch::empty(shape, branch.options()).bernoulli_(kept).div_(kept);
}

double drop_probability(double last, int64_t i, int64_t n) {
  return n > 1 ? last * static_cast<double>(i) / static_cast<double>(n - 1) : 0;
}

void initialise_transformer(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : model.modules()) {
    if (auto* linear = module->as<torch::nn::Linear>()) {
      linear->weight.normal_(0, kDeviation);
      if (linear->bias.defined()) linear->bias.zero_();
    } else if (auto* norm = module->as<torch::nn::LayerNorm>()) {
      norm->reset_parameters();
    } else if (auto* convolution = module->as<torch::nn::Conv2d>()) {
      convolution->reset_parameters();
    } else if (auto* row_convolution = module->as<torch::nn::Conv1d>()) {
      row_convolution->reset_parameters();
    } else if (auto* depthwise = module->as<nn::Depthwise>()) {
      const double bound = 1 / std::sqrt(static_cast<double>(depthwise->options().taps));
      depthwise->weight.uniform_(-bound, bound);
      depthwise->bias.zero_();
    }
  }
}

void check_images(const char* who, const Tensor& images) {
  TORCH_CHECK_VALUE(images.dim() == 4 && images.size(1) == 3 && images.size(2) > 0 && images.size(3) > 0, who,
                    ": images must be [batch, 3, height, width], but are ", images.sizes(),
                    images.dim() == 3 ? "; images.unsqueeze(0) makes a batch of one"
                    : images.dim() == 4 && images.size(3) == 3
                        ? "; images.permute({0, 3, 1, 2}) puts the colours second"
                        : "");
  TORCH_CHECK_VALUE(images.is_floating_point(), who, ": images must be floating point and normalised, but are ",
                    images.scalar_type());
}

void check_share(const char* who, const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0 && value < 1, who, ": ", name, " must be in [0, 1), but is ", value);
}

void check_positive(const char* who, const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value > 0 && value <= kMost, who, ": ", name, " must be from 1 to ", kMost, ", but is ", value);
}

std::vector<int64_t> parse_depths(const char* who, const std::string& text, int64_t least, int64_t most) {
  std::vector<int64_t> depths;
  const char* end = text.data() + text.size();
  bool good = true;
  for (const char* at = text.data(); good && at <= end;) {
    int64_t depth = 0;
    const auto [next, error] = std::from_chars(at, end, depth);
    good = error == std::errc() && depth > 0 && depth <= 1000 && (next == end || *next == ',');
    depths.push_back(depth);
    at = next + 1;
  }
  const auto count = static_cast<int64_t>(depths.size());
  TORCH_CHECK_VALUE(good && count >= least && count <= most, who, ": depths must be the numbers of blocks of ", least,
                    least == most ? "" : " or more", " stages from 1 to 1000, as in \"2,2,6,2\", but are \"", text,
                    "\"");
  return depths;
}

const char* mixer_of(const std::string& prefix) {
  return prefix == "cp-" ? "context_pool" : prefix == "dw-" ? "depthwise" : "none";
}

std::string summary_of(const std::string& prefix, const std::string& summary) {
  return summary + (prefix == "cp-"   ? " with ContextPool"
                    : prefix == "dw-" ? " with a depthwise convolution in its place"
                                      : "");
}

}  // namespace contextpool::models
