#include "models/vision_parts.h"

#include <charconv>

#include "base/words.h"

namespace contextpool::models {
namespace {

using torch::Tensor;

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

MapMixer::MapMixer(torch::nn::Module& owner, const Options& options) : options_(options) {
  const auto& o = options_.mixer;
  if (!active()) return;
  if (options_.stride == 1) {
    mixer_ = owner.register_module(o.kind, nn::make_mixer(o));
    return;
  }
  check_word("a mixer with stride 2", "kind", o.kind, {"context_pool", "depthwise", "average"});
  TORCH_CHECK_VALUE(o.residual.empty() || o.residual == "none",
                    "a mixer with stride 2 has no residual, but residual is ", o.residual);
  if (o.kind == "context_pool") {
    nn::ContextPool2dOptions pool(o.features);
    static_cast<nn::ContextPoolOptions&>(pool) = o.pool;
    pool.stride = {options_.stride, options_.stride};
    strided_pool_ = owner.register_module(o.kind, nn::ContextPool2d(pool));
  } else if (o.kind == "depthwise") {
    const auto taps = o.taps == 0 ? kTaps : o.taps;
    TORCH_CHECK_VALUE(taps > 0 && taps % 2 == 1, "Depthwise: taps must be odd, to have a middle, but are ", taps);
    const auto convolution = torch::nn::Conv2dOptions(o.features, o.features, taps)
                                 .padding(taps / 2)
                                 .stride(options_.stride)
                                 .groups(o.features);
    strided_depthwise_ = owner.register_module(o.kind, torch::nn::Conv2d(convolution));
  }
}

Tensor MapMixer::strided(const Tensor& x, std::vector<nn::Windows>* windows) {
  if (strided_depthwise_) return strided_depthwise_(x);
  if (!strided_pool_) return torch::avg_pool2d(x, options_.stride, options_.stride, 0, /*ceil_mode=*/true);
  if (windows == nullptr) return strided_pool_(x);
  auto [y, seen] = strided_pool_->forward_with_windows(x);
  windows->push_back(std::move(seen));
  return y;
}

Tensor MapMixer::forward(const Tensor& x, std::vector<nn::Windows>* windows, const Tensor& context) {
  if (!active()) return x;
  if (!mixer_) return strided(x, windows);
  const auto height = x.size(2), width = x.size(3);
  const bool row = options_.mixer.dims == 1;
  const auto to_row = [&](const Tensor& map) { return row && map.defined() ? map.flatten(2).transpose(1, 2) : map; };
  Tensor y;
  if (windows == nullptr || options_.mixer.kind != "context_pool") {
    y = mixer_->forward(to_row(x), {}, to_row(context));
  } else {
    auto [mixed, seen] = mixer_->forward_with_windows(to_row(x), {}, to_row(context));
    y = mixed;
    if (row) seen = {on_map(seen.log_weight, height, width), on_map(seen.sigma, height, width)};
    windows->push_back(std::move(seen));
  }
  return row ? y.transpose(1, 2).unflatten(2, {height, width}) : y;
}

void MapMixer::reset_parameters() {
  if (mixer_) mixer_->reset_parameters();
  if (strided_pool_) strided_pool_->reset_parameters();
  if (strided_depthwise_) {
    strided_depthwise_->reset_parameters();
    torch::nn::init::zeros_(strided_depthwise_->bias);
  }
}

MlpImpl::MlpImpl(int64_t features, int64_t hidden, double dropout) : dropout_(dropout) {
  fc1_ = register_module("fc1", nn::Linear(features, hidden));
  fc2_ = register_module("fc2", nn::Linear(hidden, features));
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
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::Linear>()) {
      linear->weight.normal_(0, kDeviation);
      if (linear->bias.defined()) linear->bias.zero_();
    } else if (auto* norm = module->as<torch::nn::LayerNorm>()) {
      norm->reset_parameters();
    } else if (auto* convolution = module->as<torch::nn::Conv2d>()) {
      convolution->reset_parameters();
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

void check_positive(const char* who, const char* name, int64_t value, int64_t most) {
  TORCH_CHECK_VALUE(value > 0 && value <= most, who, ": ", name, " must be from 1 to ", most, ", but is ", value);
}

std::vector<int64_t> parse_depths(const char* who, const std::string& text, int64_t least, int64_t most) {
  std::vector<int64_t> depths;
  const char* end = text.data() + text.size();
  bool good = true;
  for (const char* at = text.data(); good && at <= end;) {
    int64_t depth = 0;
    const auto [next, error] = std::from_chars(at, end, depth);
    good = error == std::errc() && depth > 0 && depth <= kMostLayers && (next == end || *next == ',');
    depths.push_back(depth);
    at = next + 1;
  }
  const auto count = static_cast<int64_t>(depths.size());
  TORCH_CHECK_VALUE(good && count >= least && count <= most, who, ": depths must be the numbers of blocks of ", least,
                    least == most ? "" : " or more", " stages, from 1 to ", kMostLayers,
                    ", as in \"2,2,6,2\", but are \"", text, "\"");
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
