// Differentiation of bias_gelu: the forward keeps its inputs, the backward is the operator _bias_gelu_backward.
#include "contextpool/ops/bias_gelu.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/bias_gelu.h"

namespace contextpool {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class BiasGeluFunction : public torch::autograd::Function<BiasGeluFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& bias) {
    ctx->save_for_backward({x, bias});
    const at::AutoDispatchBelowADInplaceOrView below;
    return bias_gelu(x, bias);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    auto [dx, dbias] = bias_gelu_backward(grads[0], saved[0], saved[1]);
    return {dx, dbias};
  }
};

at::Tensor bias_gelu_autograd(const at::Tensor& x, const at::Tensor& bias) {
  check_bias_gelu(x, bias);
  return BiasGeluFunction::apply(x, bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Autograd, m) {
  m.impl("bias_gelu", bias_gelu_autograd);
  m.impl("_bias_gelu_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace contextpool
