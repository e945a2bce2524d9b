// y = x W^T + b, torch's own layer with its parameters and names. Its forward adds the bias where the matrix product is
// made; torch::nn::Linear's adds it afterwards, in one more pass over rows [B, N, D].
#pragma once

#include <torch/torch.h>

namespace contextpool::nn {

class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight, bias); }
};
TORCH_MODULE(Linear);

}  // namespace contextpool::nn
