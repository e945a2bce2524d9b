// add_layer_norm on CPU tensors: PyTorch's operators, one after the other.
#include "ops/add_layer_norm.h"

#include <torch/library.h>

namespace contextpool {
namespace {

AddLayerNormResults add_layer_norm_cpu(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                                       const at::Tensor& bias, double eps, std::optional<at::ScalarType> type) {
  check_add_layer_norm(x, branch, weight, bias, type);
  return add_layer_norm_composite(x, branch, weight, bias, eps, type);
}

AddLayerNormResults add_layer_norm_backward_cpu(const std::optional<at::Tensor>& dsum, const at::Tensor& dnormed,
                                                const at::Tensor& sum, const at::Tensor& weight, const at::Tensor& mean,
                                                const at::Tensor& rstd, std::optional<at::ScalarType> narrow) {
  check_add_layer_norm_backward(dsum, dnormed, sum, weight);
  return add_layer_norm_backward_composite(dsum, dnormed, sum, weight, mean, rstd, narrow);
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CPU, m) {
  m.impl("add_layer_norm", add_layer_norm_cpu);
  m.impl("_add_layer_norm_backward", add_layer_norm_backward_cpu);
}

}  // namespace contextpool
