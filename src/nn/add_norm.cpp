#include "nn/add_norm.h"

#include <ATen/autocast_mode.h>

#include "contextpool/ops/add_layer_norm.h"

namespace contextpool::nn {

SumAndNorm add_norm(const torch::Tensor& x, const torch::Tensor& branch, torch::nn::LayerNorm& norm, bool for_product) {
  if (!x.is_cuda() || branch.sizes() != x.sizes()) {
    const auto sum = x + branch;
    return {sum, norm(sum)};
  }
  std::optional<torch::ScalarType> type;
  if (at::autocast::is_autocast_enabled(torch::kCUDA) && x.scalar_type() != torch::kDouble) {
    type = for_product ? at::autocast::get_autocast_dtype(torch::kCUDA) : torch::kFloat;  // as PyTorch's norms there
  }
  auto [sum, normed] = add_layer_norm(x, branch, norm->weight, norm->bias, norm->options.eps(), type);
  return {sum, normed};
}

}  // namespace contextpool::nn
