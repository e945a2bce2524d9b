// bias_gelu on CPU tensors: PyTorch's operators, one after the other.
#include "ops/bias_gelu.h"

#include <torch/library.h>

namespace contextpool {
namespace {

at::Tensor bias_gelu_cpu(const at::Tensor& x, const at::Tensor& bias) {
  check_bias_gelu(x, bias);
  return bias_gelu_composite(x, bias);
}

std::tuple<at::Tensor, at::Tensor> bias_gelu_backward_cpu(const at::Tensor& grad, const at::Tensor& x,
                                                          const at::Tensor& bias) {
  check_bias_gelu_backward(grad, x, bias);
  return bias_gelu_backward_composite(grad, x, bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CPU, m) {
  m.impl("bias_gelu", bias_gelu_cpu);
  m.impl("_bias_gelu_backward", bias_gelu_backward_cpu);
}

}  // namespace contextpool
