// A branch joins the residual stream, and the norm of the sum: one operator on CUDA, where each pass over memory
// counts; on the CPU the two steps that they are.
#pragma once

#include <torch/torch.h>

namespace contextpool::nn {

struct SumAndNorm {
  torch::Tensor sum, normed;
};

// for_product: what follows the norm is a matrix product, so that under autocast the norm may be given in its type.
SumAndNorm add_norm(const torch::Tensor& x, const torch::Tensor& branch, torch::nn::LayerNorm& norm, bool for_product);

}  // namespace contextpool::nn
