// Parts of the vision models: the mixer of a place, the feed-forward, stochastic depth, checks.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

#include "contextpool/models/vision.h"
#include "contextpool/nn/linear.h"
#include "contextpool/nn/mixer.h"

namespace contextpool::models {

inline constexpr int64_t kTaps = 3;  // of the depthwise control, on maps and on rows of patches
// Far beyond any use, so that damaged options ask for neither memory nor time, and no product overflows.
inline constexpr int64_t kMostSize = int64_t{1} << 16;
inline constexpr int64_t kMostClasses = int64_t{1} << 24;
inline constexpr int64_t kMostLayers = 1000;
inline constexpr double kDeviation = 0.02;  // of the initial weights of transformers

// What stands in one place of a model and mixes a map. Its modules are the owner's, registered by their kind:
// context_pool.*, depthwise.{weight,bias}, ...
class MapMixer {
 public:
  struct Options {
    nn::MixerOptions mixer;  // dims 1: the map as one row of pixels
    int64_t stride = 1;      // target (i, j) sits on pixel (i * stride, j * stride)
  };

  MapMixer() = default;
  // Of stride 1 any mixer of nn/mixer.h; of stride 2 context_pool, depthwise, or average, the mean of 2 x 2 pixels.
  MapMixer(torch::nn::Module& owner, const Options& options);

  bool active() const { return options_.mixer.kind != "none"; }
  // x [B, C, H, W] -> [B, C, Ho, Wo] with Ho = ceil(H / stride). context: as for nn::MixerImpl, [B, C, H, W].
  // windows: where a ContextPool's are added.
  torch::Tensor forward(const torch::Tensor& x, std::vector<nn::Windows>* windows, const torch::Tensor& context = {});
  // Draws its parameters anew by the mixer's own rule: initial_sigma holds.
  void reset_parameters();

 private:
  torch::Tensor strided(const torch::Tensor& x, std::vector<nn::Windows>* windows);

  Options options_;
  nn::Mixer mixer_{nullptr};
  nn::ContextPool2d strided_pool_{nullptr};
  torch::nn::Conv2d strided_depthwise_{nullptr};
};

// Those of a place: the map is `features` x height x width at the model's usual image size, `layer` its number.
template <typename ModelOptions>
MapMixer::Options place_options(const ModelOptions& o, int64_t features, int64_t height, int64_t width, int64_t layer,
                                int64_t stride = 1, bool row = false) {
  MapMixer::Options place{.mixer = {.kind = o.mixer,
                                    .features = features,
                                    .dims = row ? 1 : 2,
                                    .taps = o.mixer_taps == 0 && row && o.mixer == "depthwise" ? kTaps : o.mixer_taps,
                                    .residual = o.mixer_residual,
                                    .rank = o.mixer_rank,
                                    .heads = o.mixer_heads,
                                    .pool = o.pool},
                          .stride = stride};
  auto& pool = place.mixer.pool;
  pool.features = features;
  pool.layer = layer;
  pool.usual_length = std::max<int64_t>(1, row ? height * width : (height + width) / 2);
  return place;
}

// fc2(drop(gelu(fc1(x)))), exact gelu; then drop.
class MlpImpl : public torch::nn::Module {
 public:
  MlpImpl(int64_t features, int64_t hidden, double dropout);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  double dropout_;
  nn::Linear fc1_{nullptr}, fc2_{nullptr};
};
TORCH_MODULE(Mlp);

// Stochastic depth (Huang et al. 2016): in training the branch of an image is 0 with this probability, and otherwise
// divided by 1 - probability, so that its mean stays.
torch::Tensor drop_path(const torch::Tensor& branch, double probability, bool training);

// The probability of branch i of n: grows from 0 in the first to `last` in the last.
double drop_probability(double last, int64_t i, int64_t n);

// The initial weights of ViT and Swin for a module tree: Linear weights N(0, 0.02), their biases 0, norms 1 and 0,
// convolutions drawn by torch's own rule. Mixers draw theirs themselves, afterwards.
void initialise_transformer(torch::nn::Module& model);

// `who` opens the messages.
void check_images(const char* who, const torch::Tensor& images);
void check_share(const char* who, const char* name, double value);  // in [0, 1)
void check_positive(const char* who, const char* name, int64_t value, int64_t most = kMostSize);
std::vector<int64_t> parse_depths(const char* who, const std::string& text, int64_t least, int64_t most);  // "2,2,6,2"

// The prefix of a name says what stands in the mixers' places: nothing, ContextPool (cp-) or a depthwise convolution.
inline constexpr const char* kPrefixes[] = {"", "cp-", "dw-"};
const char* mixer_of(const std::string& prefix);
std::string summary_of(const std::string& prefix, const std::string& summary);

}  // namespace contextpool::models
