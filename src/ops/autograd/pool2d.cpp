// Differentiation of pool2d: the forward saves its three inputs, the backward is the operator _pool2d_backward.
#include "contextpool/ops/pool2d.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/checks.h"

namespace contextpool {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The stride as two numbers: an argument that is a list would count as several.
class Pool2dFunction : public torch::autograd::Function<Pool2dFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& log_weight,
                            const at::Tensor& sigma, int64_t stride_h, int64_t stride_w, std::string_view algorithm) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, log_weight, sigma});
    ctx->saved_data["stride_h"] = stride_h;
    ctx->saved_data["stride_w"] = stride_w;
    ctx->saved_data["algorithm"] = std::string(algorithm);
    return pool2d(x, log_weight, sigma, {stride_h, stride_w}, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto stride_h = ctx->saved_data["stride_h"].toInt();
    const auto stride_w = ctx->saved_data["stride_w"].toInt();
    auto [dx, dlog_weight, dsigma] = pool2d_backward(grads[0], saved[0], saved[1], saved[2], {stride_h, stride_w},
                                                     ctx->saved_data["algorithm"].toStringRef());
    return {dx, dlog_weight, dsigma, {}, {}, {}};
  }
};

// Exists so that differentiating the gradient is refused with a reason instead of giving silent zeros.
class Pool2dBackwardFunction : public torch::autograd::Function<Pool2dBackwardFunction> {
 public:
  static variable_list forward(AutogradContext* /*ctx*/, const at::Tensor& grad, const at::Tensor& x,
                               const at::Tensor& log_weight, const at::Tensor& sigma, int64_t stride_h,
                               int64_t stride_w, std::string_view algorithm) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [dx, dlog_weight, dsigma] = pool2d_backward(grad, x, log_weight, sigma, {stride_h, stride_w}, algorithm);
    return {dx, dlog_weight, dsigma};
  }

  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& /*grads*/) {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "contextpool::pool2d: the second derivative (double backward) is not available; "
                                "compute first derivatives only (no create_graph=True through this operator)");
  }
};

void check_stride(at::IntArrayRef stride) {
  TORCH_CHECK_VALUE(stride.size() == 2, "contextpool::pool2d: stride must be two numbers of at least 1, but is ",
                    shape(stride));
}

at::Tensor pool2d_autograd(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                           at::IntArrayRef stride, std::string_view algorithm) {
  check_stride(stride);
  check_defined("contextpool::pool2d", x, log_weight, sigma);
  return Pool2dFunction::apply(x, log_weight, sigma, stride[0], stride[1], algorithm);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool2d_backward_autograd(const at::Tensor& grad, const at::Tensor& x,
                                                                        const at::Tensor& log_weight,
                                                                        const at::Tensor& sigma, at::IntArrayRef stride,
                                                                        std::string_view algorithm) {
  check_stride(stride);
  if (!c10::GradMode::is_enabled()) {  // as in an ordinary backward: straight on
    const at::AutoDispatchBelowADInplaceOrView below;
    return pool2d_backward(grad, x, log_weight, sigma, stride, algorithm);
  }
  auto grads = Pool2dBackwardFunction::apply(grad, x, log_weight, sigma, stride[0], stride[1], algorithm);
  return {grads[0], grads[1], grads[2]};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Autograd, m) {
  m.impl("pool2d", pool2d_autograd);
  m.impl("_pool2d_backward", pool2d_backward_autograd);
}

}  // namespace contextpool
