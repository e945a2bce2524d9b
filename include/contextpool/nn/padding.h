// Which tokens of a batch are real. Made from nothing (all), from integer lengths [B] (the first ones of each row; rows
// of tokens only), or from a mask [B, N] or [B, H, W] of bool or of integers (0 or 1), true where the token is real.
// What padded tokens hold (NaN included) reaches neither the other tokens nor the gradients; their outputs are 0.
#pragma once

#include <torch/torch.h>

#include <utility>

namespace contextpool::nn {

class Padding {
 public:
  Padding() = default;
  Padding(torch::Tensor lengths_or_mask) : given_(std::move(lengths_or_mask)) {}
  // From a mask that is true where a token is padding: the polarity of torch::nn::MultiheadAttention.
  static Padding key_padding_mask(const torch::Tensor& mask);

  // The boolean mask for a batch of these sizes ([B, N] or [B, H, W]) on this device; undefined where every token is
  // real. Lengths must be from 0 to N; that is checked where they lie on the CPU, since a check elsewhere would wait
  // for the device.
  torch::Tensor mask(torch::IntArrayRef sizes, const torch::Device& device) const;

 private:
  torch::Tensor given_;
};

}  // namespace contextpool::nn
