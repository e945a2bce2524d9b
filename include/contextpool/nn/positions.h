// How a model knows where a token stands. One interface, three kinds:
//
//   rotary      turns each pair (2k, 2k+1) of a head's queries and keys by the angle p * 10000^(-2k / head features),
//               so that a score depends on the distance of two tokens only; adds nothing to the features
//   learned     adds row p of a table, the parameter `weight` [length, features]
//   sinusoidal  adds sin(p f_k) to channel 2k and cos(p f_k) to channel 2k+1, f_k = 10000^(-2k / features)
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace contextpool::nn {

struct PositionsOptions {
  std::string kind = "rotary";  // rotary, learned or sinusoidal
  int64_t features = 512;
  int64_t heads = 8;
  int64_t length = 2048;  // rows of the learned table
};

// The turns of tokens as complex numbers of length 1, [tokens, head features / 2], or [batch, tokens, head features /
// 2] where rows differ; undefined where the positions are not rotary.
using Rotation = torch::Tensor;

class PositionsImpl : public torch::nn::Module {
 public:
  explicit PositionsImpl(PositionsOptions options);

  // x [batch, tokens, features] with what the positions add. The tokens stand at positions first, first + 1, ...; or at
  // those of `at`, int64 [batch, tokens], each below first + tokens.
  torch::Tensor add(const torch::Tensor& x, int64_t first = 0, const torch::Tensor& at = {});

  // The turns of the same positions for queries and keys of x's type and device.
  Rotation rotation(const torch::Tensor& x, int64_t first = 0, const torch::Tensor& at = {});

  const PositionsOptions& options() const { return options_; }

 private:
  torch::Tensor table(const torch::Tensor& x, int64_t first, const torch::Tensor& at);

  PositionsOptions options_;
  torch::Tensor weight_;  // learned
  // Of the others: computed in float64, for the types and devices of x so far, grown by doubling. Shorter ones are
  // kept, since a recorded CUDA graph reads the table that was there.
  std::vector<torch::Tensor> tables_;
};
TORCH_MODULE(Positions);

// Where the tokens of a mask [batch, tokens] stand: how many real ones come before each, so that a row has the same
// positions however it is padded. Undefined where the mask is.
torch::Tensor positions_of(const torch::Tensor& real);

// x [batch, tokens, ..., head features] turned by `rotation`; x itself where that is undefined. Half types are turned
// in float32.
torch::Tensor rotate(const torch::Tensor& x, const Rotation& rotation);

}  // namespace contextpool::nn
