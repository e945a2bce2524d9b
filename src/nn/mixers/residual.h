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

// up(down(h)) without bias, [..., in] -> [..., out]. up starts at 0, down as torch starts a Linear.
class LowRankImpl : public torch::nn::Module {
 public:
  LowRankImpl(int64_t in, int64_t rank, int64_t out);
  torch::Tensor forward(const torch::Tensor& h);
  void reset_parameters();

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

  // x and the mixed one of a shape, 0 at padded tokens; mask and context as for MixerImpl::forward.
  torch::Tensor apply(const torch::Tensor& x, const torch::Tensor& mixed, const torch::Tensor& context,
                      const torch::Tensor& mask);
  void reset_parameters();

 private:
  const char* who_;
  Options options_;
  torch::Tensor scale_;
  LowRank gate_{nullptr};
};

const std::vector<std::string>& residual_kinds();

}  // namespace contextpool::nn
