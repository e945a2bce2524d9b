// A branch joins the residual stream, and the norm of the sum: one operator on CUDA, where each pass over memory
// counts; on the CPU the two steps that they are. Under autocast norms on CUDA come in its type and not, as PyTorch's
// do, in float32: a matrix product that follows would cast them, and a mixer before it moves half the bytes.
#pragma once

#include <torch/torch.h>

namespace contextpool::nn {

struct SumAndNorm {
  torch::Tensor sum, normed;
};

SumAndNorm add_norm(const torch::Tensor& x, const torch::Tensor& branch, torch::nn::LayerNorm& norm);

// Where there is no branch, and x is the sum.
SumAndNorm only_norm(const torch::Tensor& x, torch::nn::LayerNorm& norm);

}  // namespace contextpool::nn
