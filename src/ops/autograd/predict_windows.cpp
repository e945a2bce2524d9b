// Differentiation of predict_windows: the forward keeps its inputs and u of the sizes, the backward is the operator
// _predict_windows_backward.
#include "ops/predict_windows.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace contextpool {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class PredictWindowsFunction : public torch::autograd::Function<PredictWindowsFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& product, const at::Tensor& bias,
                               const at::Tensor& weight, const at::Tensor& out_bias, int64_t left, int64_t sizes,
                               const SizeMap& map) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [log_weight, sigma, u] = predict_windows_call(product, bias, weight, out_bias, left, sizes, map);
    ctx->mark_non_differentiable({u});
    ctx->save_for_backward({product, bias, weight, out_bias, u});
    ctx->saved_data["left"] = left;
    ctx->saved_data["size_range"] = map.size_range;
    ctx->saved_data["shift"] = map.shift;
    ctx->saved_data["least"] = map.least;
    ctx->saved_data["span"] = map.span;
    return {log_weight, sigma, u};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto number = [&](const char* name) { return ctx->saved_data[name].toDouble(); };
    auto [dproduct, dbias, dweight, dout_bias] = predict_windows_backward(
        grads[0], grads[1], saved[0], saved[1], saved[2], saved[3], saved[4], ctx->saved_data["left"].toInt(),
        {number("size_range"), number("shift"), number("least"), number("span")});
    return {dproduct, dbias, dweight, dout_bias, {}, {}, {}};
  }
};

PredictedWindows predict_windows_autograd(const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight,
                                          const at::Tensor& out_bias, int64_t left, int64_t sizes, double size_range,
                                          double shift, double least, double span) {
  check_predict_windows(product, bias, weight, out_bias, left, sizes);
  const auto all = PredictWindowsFunction::apply(product, bias, weight, out_bias, left, sizes,
                                                 SizeMap{size_range, shift, least, span});
  return {all[0], all[1], all[2]};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Autograd, m) {
  m.impl("predict_windows", predict_windows_autograd);
  m.impl("_predict_windows_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace contextpool
