// Parts of the vision models: the mixer of a place, the feed-forward, stochastic depth, checks.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "contextpool/models/vision.h"
#include "contextpool/nn/depthwise.h"

namespace contextpool::models {

inline constexpr double kDeviation = 0.02;  // of the initial weights of transformers

// What stands in one place of a model and mixes a map. Its modules are the owner's: context_pool.* or
// depthwise.{weight,bias}.
class MapMixer {
 public:
  struct Options {
    std::string kind = "none";
    std::string residual = "none";
    int64_t features = 0;
    int64_t taps = 0;
    int64_t stride = 1;  // target (i, j) sits on pixel (i * stride, j * stride)
    bool row = false;    // the map as one row of pixels
    int64_t height = 0;  // of the usual map, for the initial sizes
    int64_t width = 0;   //
    int64_t layer = 0;   // of random_sparse
    nn::ContextPoolOptions pool = {};
  };

  MapMixer() = default;
  MapMixer(torch::nn::Module& owner, Options options);

  bool active() const { return options_.kind != "none"; }
  // x [B, C, H, W] -> [B, C, Ho, Wo] with Ho = ceil(H / stride). windows: where a ContextPool's are added.
  torch::Tensor forward(const torch::Tensor& x, std::vector<nn::Windows>* windows);
  // After a model has drawn all of its parameters by its own rule: ContextPool's sizes.
  void finish_initialisation();

 private:
  torch::Tensor mixed(const torch::Tensor& x, std::vector<nn::Windows>* windows);
  torch::Tensor pooled(const torch::Tensor& x, std::vector<nn::Windows>* windows);

  Options options_;
  nn::ContextPool1d row_pool_{nullptr};
  nn::ContextPool2d map_pool_{nullptr};
  nn::Depthwise row_depthwise_{nullptr};
  torch::nn::Conv2d map_depthwise_{nullptr};
};

// fc2(drop(gelu(fc1(x)))), exact gelu; then drop.
class MlpImpl : public torch::nn::Module {
 public:
  MlpImpl(int64_t features, int64_t hidden, double dropout);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  double dropout_;
  torch::nn::Linear fc1_{nullptr}, fc2_{nullptr};
};
TORCH_MODULE(Mlp);

// Stochastic depth (Huang et al. 2016): in training the branch of an image is 0 with this probability, and otherwise
// divided by 1 - probability, so that its mean stays.
torch::Tensor drop_path(const torch::Tensor& branch, double probability, bool training);

// The probability of branch i of n: grows from 0 in the first to `last` in the last.
double drop_probability(double last, int64_t i, int64_t n);

// The initial weights of ViT and Swin for a module tree: Linear weights N(0, 0.02), their biases 0, norms 1 and 0,
// convolutions drawn by torch's own rule. Mixers still have to finish theirs.
void initialise_transformer(torch::nn::Module& model);

// `who` opens the messages.
void check_images(const char* who, const torch::Tensor& images);
void check_share(const char* who, const char* name, double value);                                         // in [0, 1)
void check_positive(const char* who, const char* name, int64_t value);                                     // 1 .. 2^24
std::vector<int64_t> parse_depths(const char* who, const std::string& text, int64_t least, int64_t most);  // "2,2,6,2"

// The prefix of a name says what stands in the mixers' places: nothing, ContextPool (cp-) or a depthwise convolution.
inline constexpr const char* kPrefixes[] = {"", "cp-", "dw-"};
const char* mixer_of(const std::string& prefix);
std::string summary_of(const std::string& prefix, const std::string& summary);

}  // namespace contextpool::models
