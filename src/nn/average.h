// Softmax averages in which any entry may be missing: -inf among the scores, or a factor of 0. A row without any entry
// gives 0, with gradients of 0, where torch's softmax gives NaN.
#pragma once

#include <torch/torch.h>

namespace contextpool::nn {

// exp(scores) g / sum exp(scores) g over the last dimension, with factors g >= 0, or 1 where undefined.
torch::Tensor shares(const torch::Tensor& scores, const torch::Tensor& factors = {});

// sum_j exp(scores_ij) g_ij x_j / sum_j exp(scores_ij) g_ij: x [..., S, D], scores [..., 1 or M, S] in float32 or
// float64, factors g [..., M, S]; returns [..., M, D] in the dtype of x.
torch::Tensor average(const torch::Tensor& x, const torch::Tensor& scores, const torch::Tensor& factors);

}  // namespace contextpool::nn
