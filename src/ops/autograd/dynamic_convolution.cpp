// Differentiation of dynamic_convolution: the forward keeps its inputs, none of the coefficients; the backward is the
// operator _dynamic_convolution_backward.
#include "contextpool/ops/dynamic_convolution.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/dynamic_convolution.h"

namespace contextpool {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class DynamicConvolutionFunction : public torch::autograd::Function<DynamicConvolutionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& inner, const at::Tensor& up,
                            const at::Tensor& weight, int64_t left, bool residual) {
    ctx->save_for_backward({x, inner, up, weight});
    ctx->saved_data["left"] = left;
    ctx->saved_data["residual"] = residual;
    const at::AutoDispatchBelowADInplaceOrView below;
    return dynamic_convolution(x, inner, up, weight, left, residual);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    auto [dx, dinner, dup, dweight] =
        dynamic_convolution_backward(grads[0], saved[0], saved[1], saved[2], saved[3], ctx->saved_data["left"].toInt(),
                                     ctx->saved_data["residual"].toBool());
    return {dx, dinner, dup, dweight, {}, {}};
  }
};

at::Tensor dynamic_convolution_autograd(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& up,
                                        const at::Tensor& weight, int64_t left, bool residual) {
  check_dynamic_convolution(x, inner, up, weight, left);
  return DynamicConvolutionFunction::apply(x, inner, up, weight, left, residual);
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Autograd, m) {
  m.impl("dynamic_convolution", dynamic_convolution_autograd);
  m.impl("_dynamic_convolution_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace contextpool
