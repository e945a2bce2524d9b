#include "contextpool/models/swin.h"

#include <limits>
#include <optional>

#include "models/vision_cost.h"
#include "models/vision_parts.h"

namespace contextpool::models {
namespace {

using torch::Tensor;

constexpr const char* kWho = "Swin";
constexpr int64_t kColours = 3;
constexpr int64_t kMostStages = 6;

int64_t up_to_multiple(int64_t size, int64_t of) { return (size + of - 1) / of * of; }

std::vector<int64_t> depths_of(const SwinOptions& o) { return parse_depths(kWho, o.depths, 1, kMostStages); }

void check_options(const SwinOptions& o) {
  check_positive(kWho, "classes", o.classes, kMostClasses);
  for (const auto& [name, value] : {std::pair{"image_size", o.image_size},
                                    {"patch", o.patch},
                                    {"window", o.window},
                                    {"features", o.features},
                                    {"head_features", o.head_features},
                                    {"feedforward_ratio", o.feedforward_ratio}}) {
    check_positive(kWho, name, value);
  }
  check_share(kWho, "dropout", o.dropout);
  check_share(kWho, "attention_dropout", o.attention_dropout);
  check_share(kWho, "stochastic_depth", o.stochastic_depth);
  TORCH_CHECK_VALUE(o.features % o.head_features == 0, kWho, ": head_features must divide the ", o.features,
                    " features, but are ", o.head_features);
}

// Where a block stands.
struct Place {
  int64_t stage = 0, block = 0, layer = 0, layers = 0;  // layer of layers: its number in the whole model
  int64_t features = 0, side = 0;                       // of its map; side at image_size
  bool shifted() const { return block % 2 == 1; }
};

MapMixer::Options mixer_options(const SwinOptions& o, const Place& place) {
  return place_options(o, place.features, place.side, place.side, place.layer);
}

// How one side of a map is cut into windows.
struct Side {
  Side(int64_t size, int64_t window, bool shifted)
      : size(size), padded(up_to_multiple(size, window)), shift(shifted && size > window ? window / 2 : 0) {}
  int64_t size, padded, shift;

  // The region of each place of the shifted side: places of one window see each other only within a region. Padding is
  // -1. The places that the shift brought from the front to the end are a region of their own, unless they stand in
  // no window with others.
  Tensor regions() const {
    auto place = torch::roll(torch::arange(padded), -shift);
    return torch::where(place >= size, -1, (place < shift).to(torch::kInt64));
  }
};

// [B, H, W, C] cut into windows, [B * windows, window * window, C], and back.
Tensor to_windows(const Tensor& map, int64_t window) {
  const auto batch = map.size(0), rows = map.size(1) / window, columns = map.size(2) / window;
  return map.reshape({batch, rows, window, columns, window, -1})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({batch * rows * columns, window * window, -1});
}

Tensor from_windows(const Tensor& windows, int64_t window, int64_t height, int64_t width) {
  return windows.reshape({-1, height / window, width / window, window, window, windows.size(2)})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({-1, height, width, windows.size(2)});
}

// Which places of each window see which, bool [windows, window^2, window^2]; undefined where all see all. Every place
// sees itself, so that no row of a softmax is empty; what padding sees is cut off later.
Tensor visibility(const Side& rows, const Side& columns, int64_t window) {
  if (rows.shift == 0 && columns.shift == 0 && rows.size == rows.padded && columns.size == columns.padded) return {};
  const auto row = rows.regions().unsqueeze(1), column = columns.regions().unsqueeze(0);
  const auto region = torch::where((row < 0).logical_or(column < 0), -1, 2 * row + column);
  const auto places = to_windows(region.view({1, rows.padded, columns.padded, 1}), window).squeeze(2);
  const auto here = places.unsqueeze(1), there = places.unsqueeze(2);
  const auto self = torch::eye(window * window, torch::kBool);
  return (here == there).logical_and(here >= 0).logical_or(self);
}

// The row of the position table for each pair of places of a window, [window^4].
Tensor position_index(int64_t window) {
  const auto place = torch::arange(window * window);
  const auto row = place.div(window, "floor"), column = place.remainder(window);
  const auto apart = [&](const Tensor& at) { return at.unsqueeze(1) - at.unsqueeze(0) + (window - 1); };
  return (apart(row) * (2 * window - 1) + apart(column)).flatten();
}

}  // namespace

// Attention inside the windows of a map, with a learnt bias for each distance between two places.
class WindowAttentionImpl : public torch::nn::Module {
 public:
  WindowAttentionImpl(const SwinOptions& o, const Place& place)
      : window_(o.window),
        heads_(place.features / o.head_features),
        dropout_(o.attention_dropout),
        shifted_(place.shifted()),
        index_(position_index(o.window)) {
    const auto distances = 2 * window_ - 1;
    table_ = register_parameter("relative_position_bias_table", torch::zeros({distances * distances, heads_}));
    qkv_ = register_module("qkv", nn::Linear(place.features, 3 * place.features));
    proj_ = register_module("proj", nn::Linear(place.features, place.features));
  }

  // x [B, H, W, C] -> the same
  Tensor forward(const Tensor& x) {
    const Side rows(x.size(1), window_, shifted_), columns(x.size(2), window_, shifted_);
    auto map = torch::constant_pad_nd(x, {0, 0, 0, columns.padded - columns.size, 0, rows.padded - rows.size});
    const bool moved = rows.shift > 0 || columns.shift > 0;
    if (moved) map = torch::roll(map, {-rows.shift, -columns.shift}, {1, 2});
    const auto windows = to_windows(map, window_);
    const auto qkv = qkv_(windows).unflatten(2, {3, heads_, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto y =
        at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], bias(rows, columns, x), is_training() ? dropout_ : 0);
    map = from_windows(proj_(y.transpose(1, 2).flatten(2)), window_, rows.padded, columns.padded);
    if (moved) map = torch::roll(map, {rows.shift, columns.shift}, {1, 2});
    return map.slice(1, 0, rows.size).slice(2, 0, columns.size);
  }

  void reset_table() { table_.normal_(0, kDeviation); }

 private:
  // Makes index_ and visible_ those for this map.
  void prepare(const Side& rows, const Side& columns, const torch::Device& device) {
    const c10::InferenceMode no_inference(false);  // what is kept may be needed in training later
    if (index_.device() != device) index_ = index_.to(device);
    const bool same = height_ == rows.size && width_ == columns.size;
    if (same && (!visible_.defined() || visible_.device() == device)) return;
    visible_ = visibility(rows, columns, window_);
    if (visible_.defined()) visible_ = visible_.to(device);
    height_ = rows.size;
    width_ = columns.size;
  }

  // What is added to the scores, [1 or B * windows, heads, window^2, window^2].
  Tensor bias(const Side& rows, const Side& columns, const Tensor& x) {
    prepare(rows, columns, x.device());
    const auto places = window_ * window_;
    auto bias = table_.index_select(0, index_).view({1, places, places, heads_}).permute({0, 3, 1, 2});
    if (!visible_.defined()) return bias.contiguous();
    bias = bias.masked_fill(visible_.logical_not().unsqueeze(1), -std::numeric_limits<double>::infinity());
    return bias.unsqueeze(0).expand({x.size(0), -1, -1, -1, -1}).flatten(0, 1);
  }

  int64_t window_, heads_;
  double dropout_;
  bool shifted_;
  Tensor table_;
  nn::Linear qkv_{nullptr}, proj_{nullptr};
  // What depends on sizes alone; not part of a checkpoint.
  Tensor index_, visible_;
  int64_t height_ = 0, width_ = 0;  // of the map that visible_ is for
};
TORCH_MODULE(WindowAttention);

class SwinBlockImpl : public torch::nn::Module {
 public:
  SwinBlockImpl(const SwinOptions& o, const Place& place)
      : dropout_(o.dropout), drop_(drop_probability(o.stochastic_depth, place.layer, place.layers)) {
    const torch::nn::LayerNormOptions norm({place.features});
    norm1_ = register_module("norm1", torch::nn::LayerNorm(norm));
    attention_ = register_module("attn", WindowAttention(o, place));
    mixer_ = MapMixer(*this, mixer_options(o, place));
    norm2_ = register_module("norm2", torch::nn::LayerNorm(norm));
    mlp_ = register_module("mlp", Mlp(place.features, o.feedforward_ratio * place.features, o.dropout));
  }

  // x [B, H, W, C]
  Tensor forward(const Tensor& x, std::vector<nn::Windows>* windows) {
    const auto normed = norm1_(x);
    auto branch = attention_(normed);
    if (mixer_.active()) {
      const auto map = branch.permute({0, 3, 1, 2});
      branch = mixer_.forward(map, windows, normed.permute({0, 3, 1, 2})).permute({0, 2, 3, 1});
    }
    branch = torch::dropout(branch, dropout_, is_training());
    const auto y = x + drop_path(branch, drop_, is_training());
    return y + drop_path(mlp_(norm2_(y)), drop_, is_training());
  }

  void reset_parts() {
    attention_->reset_table();
    mixer_.reset_parameters();
  }

 private:
  double dropout_, drop_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  WindowAttention attention_{nullptr};
  MapMixer mixer_;
  Mlp mlp_{nullptr};
};

class SwinStageImpl : public torch::nn::Module {
 public:
  // `place` is that of its first block; `last` has no downsampling.
  SwinStageImpl(const SwinOptions& o, Place place, int64_t depth, bool last) {
    const auto blocks = register_module("blocks", torch::nn::ModuleList());
    for (place.block = 0; place.block < depth; ++place.block, ++place.layer) {
      blocks_.push_back(std::make_shared<SwinBlockImpl>(o, place));
      blocks->push_back(blocks_.back());
    }
    if (last) return;
    const auto downsample = register_module("downsample", std::make_shared<torch::nn::Module>());
    const auto four = 4 * place.features;
    norm_ = downsample->register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({four})));
    reduction_ = downsample->register_module(
        "reduction", nn::Linear(torch::nn::LinearOptions(four, 2 * place.features).bias(false)));
  }

  // x [B, H, W, C] -> [B, ceil(H / 2), ceil(W / 2), 2 C], the last stage: the same shape
  Tensor forward(const Tensor& input, std::vector<nn::Windows>* windows) {
    auto x = input;
    for (auto& block : blocks_) x = block->forward(x, windows);
    if (!reduction_) return x;
    x = torch::constant_pad_nd(x, {0, 0, 0, x.size(2) % 2, 0, x.size(1) % 2});
    const auto quarter = [&](int64_t row, int64_t column) {
      return x.slice(1, row, std::nullopt, 2).slice(2, column, std::nullopt, 2);
    };
    return reduction_(norm_(torch::cat({quarter(0, 0), quarter(1, 0), quarter(0, 1), quarter(1, 1)}, 3)));
  }

  void reset_parts() {
    for (auto& block : blocks_) block->reset_parts();
  }

 private:
  std::vector<std::shared_ptr<SwinBlockImpl>> blocks_;
  torch::nn::LayerNorm norm_{nullptr};  // downsample.norm
  nn::Linear reduction_{nullptr};       // downsample.reduction
};

namespace {

// Calls f(place of the first block, depth, whether it is the last) for each stage.
template <typename F>
void for_each_stage(const SwinOptions& o, F f) {
  const auto depths = depths_of(o);
  Place place{.features = o.features, .side = up_to_multiple(o.image_size, o.patch) / o.patch};
  for (const auto depth : depths) place.layers += depth;
  for (const auto depth : depths) {
    const bool last = place.stage + 1 == static_cast<int64_t>(depths.size());
    f(place, depth, last);
    place.stage += 1;
    place.layer += depth;
    place.features *= 2;
    place.side = (place.side + 1) / 2;
  }
}

}  // namespace

SwinImpl::SwinImpl(SwinOptions options) : options_(std::move(options)) {
  const auto& o = options_;
  check_options(o);
  const auto patch_embed = register_module("patch_embed", std::make_shared<torch::nn::Module>());
  proj_ = patch_embed->register_module(
      "proj", torch::nn::Conv2d(torch::nn::Conv2dOptions(kColours, o.features, o.patch).stride(o.patch)));
  patch_norm_ = patch_embed->register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.features})));
  dropout_ = register_module("pos_drop", torch::nn::Dropout(o.dropout));
  const auto layers = register_module("layers", torch::nn::ModuleList());
  int64_t features = 0;
  for_each_stage(o, [&](const Place& place, int64_t depth, bool last) {
    stages_.push_back(std::make_shared<SwinStageImpl>(o, place, depth, last));
    layers->push_back(stages_.back());
    features = place.features;
  });
  norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({features})));
  head_ = register_module("head", nn::Linear(features, o.classes));
  reset_parameters();
}

void SwinImpl::reset_parameters() {
  const torch::NoGradGuard no_grad;
  initialise_transformer(*this);
  for (const auto& stage : stages_) stage->reset_parts();
}

Tensor SwinImpl::run(const Tensor& images, std::vector<nn::Windows>* windows) {
  check_images(kWho, images);
  const auto padding = [&](int64_t size) { return up_to_multiple(size, options_.patch) - size; };
  const auto down = padding(images.size(2)), right = padding(images.size(3));
  const auto whole = down + right > 0 ? torch::constant_pad_nd(images, {0, right, 0, down}) : images;
  auto x = dropout_(patch_norm_(proj_(whole).permute({0, 2, 3, 1})));
  for (auto& stage : stages_) x = stage->forward(x, windows);
  return head_(norm_(x).mean(torch::IntArrayRef{1, 2}));
}

Tensor SwinImpl::forward(const Tensor& images) { return run(images, nullptr); }

LogitsAndWindows SwinImpl::forward_with_windows(const Tensor& images) {
  LogitsAndWindows all;
  all.first = run(images, &all.second);
  return all;
}

VisionCost cost(const SwinOptions& o) {
  check_options(o);
  Counter counter;
  counter.norm(o.features);
  int64_t features = 0;
  for_each_stage(o, [&](const Place& place, int64_t depth, bool last) {
    features = place.features;
    const auto padded = up_to_multiple(place.side, o.window), pixels = place.side * place.side;
    const auto distances = 2 * o.window - 1, hidden = o.feedforward_ratio * features;
    if (place.stage == 0) counter.convolution(kColours, features, o.patch, pixels, /*bias=*/true);
    for (int64_t block = 0; block < depth; ++block) {
      counter.norm(features);
      counter.linear(features, 3 * features, padded * padded);
      counter.table(distances * distances * features / o.head_features);
      counter.attention(padded * padded, o.window * o.window, features);
      counter.linear(features, features, padded * padded);
      counter.mixer(mixer_options(o, place), place.side, place.side);
      counter.norm(features);
      counter.linear(features, hidden, pixels);
      counter.linear(hidden, features, pixels);
    }
    if (last) return;
    const auto half = (place.side + 1) / 2;
    counter.norm(4 * features);
    counter.linear(4 * features, 2 * features, half * half, /*bias=*/false);
  });
  counter.norm(features);
  counter.linear(features, o.classes, 1);
  return counter.cost();
}

const std::vector<NamedSwin>& swins() {
  static const auto models = [] {
    std::vector<NamedSwin> all;
    const auto add = [&](const std::string& name, const std::string& summary, SwinOptions options) {
      for (const std::string prefix : kPrefixes) {
        options.mixer = mixer_of(prefix);
        all.push_back({prefix + name, summary_of(prefix, summary), options});
      }
    };
    add("swin-tiny", "Swin of 12 blocks, 96 features", {.stochastic_depth = 0.2});
    add("swin-small", "Swin of 24 blocks, 96 features", {.depths = "2,2,18,2", .stochastic_depth = 0.3});
    add("swin-base", "Swin of 24 blocks, 128 features",
        {.depths = "2,2,18,2", .features = 128, .stochastic_depth = 0.5});
    return all;
  }();
  return models;
}

}  // namespace contextpool::models
