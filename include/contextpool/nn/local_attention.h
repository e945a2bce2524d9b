// Local attention (Yang et al. 2018): each query of each head predicts a centre P_i and a window D_i among the I keys
// it may see, and a Gaussian around the centre is added to its scores:
//
//   h_i = tanh(W q_i),   P_i = I sigmoid(u_P^T h_i),   D_i = I sigmoid(u_D^T h_i),
//   score_ij = q_i k_j^T / sqrt(head features) - (j - P_i)^2 / (2 sigma_i^2),   sigma_i = D_i / 2
//
// j counts the real keys of a row from 0, and I is how many there are; in causal attention those up to the query's own,
// i + 1, so that nothing tells of the future and a cached step equals the whole pass. A window counts as at least 0.01
// keys wide. q_i is the query as scored, after rotary positions if the model has them.
#pragma once

#include <torch/torch.h>

namespace contextpool::nn {

struct Sight;

// Parameters: weight [heads, head features, head features], centre and width [heads, head features].
class LocalWindowsImpl : public torch::nn::Module {
 public:
  LocalWindowsImpl(int64_t heads, int64_t head_features);

  struct Predicted {
    torch::Tensor centre, width;  // P and D, [batch, heads, queries, 1] in float32 or float64
  };
  // q [batch, heads, queries, head features]; keys: I of each query, [batch or 1, 1, queries or 1, 1].
  Predicted forward(const torch::Tensor& q, const torch::Tensor& keys) const;

  // Attention with these windows; arguments as for full_attention of src/nn/sight.h.
  torch::Tensor attend(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                       const Sight& sight) const;

  // Uniform with the variance 2 / (rows + columns), as tensor2tensor starts matrices.
  void reset_parameters();

  torch::Tensor weight, centre, width;
};
TORCH_MODULE(LocalWindows);

}  // namespace contextpool::nn
