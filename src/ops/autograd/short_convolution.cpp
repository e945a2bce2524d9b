// Differentiation of short_convolution: the forward keeps x and weight, the backward is the operator
// _short_convolution_backward.
#include "contextpool/ops/short_convolution.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/short_convolution.h"

namespace contextpool {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class ShortConvolutionFunction : public torch::autograd::Function<ShortConvolutionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, int64_t left, bool residual) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["left"] = left;
    ctx->saved_data["residual"] = residual;
    ctx->saved_data["bias"] = bias && bias->defined();
    const at::AutoDispatchBelowADInplaceOrView below;
    return short_convolution(x, weight, bias, left, residual);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    auto [dx, dweight, dbias] = short_convolution_backward(
        grads[0], saved[0], saved[1], ctx->saved_data["left"].toInt(), ctx->saved_data["residual"].toBool());
    return {dx, dweight, ctx->saved_data["bias"].toBool() ? dbias : at::Tensor(), {}, {}};
  }
};

at::Tensor short_convolution_autograd(const at::Tensor& x, const at::Tensor& weight,
                                      const std::optional<at::Tensor>& bias, int64_t left, bool residual) {
  check_short_convolution(x, weight, bias, left);
  return ShortConvolutionFunction::apply(x, weight, bias, left, residual);
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Autograd, m) {
  m.impl("short_convolution", short_convolution_autograd);
  m.impl("_short_convolution_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace contextpool
