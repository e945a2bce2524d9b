// What a mixer's output M(x) is added to, and how much it counts:
//
//   none  M(x)      plain  x + M(x)      scale  x + s M(x)      gated  x + (s + up(down(h))) M(x)
//
// with s [features] drawn from +-1/2 at first and up at 0. Parameters of the owner: scale, gate.{down,up}.weight.
#pragma once

#include <torch/torch.h>

#include "contextpool/nn/linear.h"

#include <string>
#include <vector>

namespace contextpool::nn {

// up(down(h)), [..., in] -> [..., out], plus a bias [out] that may be given. up starts at 0, down as torch starts a
// Linear.
class LowRankImpl : public torch::nn::Module {
 public:
  LowRankImpl(int64_t in, int64_t rank, int64_t out);
  torch::Tensor forward(const torch::Tensor& h, const torch::Tensor& bias = {});
  void reset_parameters();

  // down(h) and the weight of up, both with zeros up to a rank that fills whole pieces of memory where h is on a GPU:
  // matrix products with rows of 15 took 3 ms more of a step of 12 layers with 24 of these on an H200.
  torch::Tensor inner(const torch::Tensor& h);
  torch::Tensor outer(const torch::Tensor& h) const;

  Linear down{nullptr}, up{nullptr};
};
TORCH_MODULE(LowRank);

class Residual {
 public:
  struct Options {
    std::string kind = "none";
    int64_t features = 0;
    int64_t rank = 15;
    int64_t context_features = 0;  // 0: features
    int64_t dims = 1;
  };

  // Registers its parameters with the owner; `who` opens the messages.
  Residual(const char* who, torch::nn::Module& owner, Options options);

  // M(x), x + M(x) and so on, with `base` in place of the x that is added to: x, or x and more. All of a shape, 0 at
  // padded tokens; mask and context as for MixerImpl::forward.
  torch::Tensor apply(const torch::Tensor& base, const torch::Tensor& mixed, const torch::Tensor& x,
                      const torch::Tensor& context, const torch::Tensor& mask);
  void reset_parameters();

 private:
  const char* who_;
  Options options_;
  torch::Tensor scale_;
  LowRank gate_{nullptr};
};

const std::vector<std::string>& residual_kinds();

}  // namespace contextpool::nn
