// Differentiation of rotary and rotary_qkv: the turn by the negative angle. Of the inputs only cos and sin are kept.
#include "contextpool/ops/rotary.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/rotary.h"

namespace contextpool {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class RotaryFunction : public torch::autograd::Function<RotaryFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                            bool back) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["back"] = back;
    const at::AutoDispatchBelowADInplaceOrView below;
    return rotary(x, cos, sin, back);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotary(grads[0], saved[0], saved[1], !ctx->saved_data["back"].toBool()), {}, {}, {}};
  }
};

class RotaryQkvFunction : public torch::autograd::Function<RotaryQkvFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& cos,
                               const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [q, k, v] = rotary_qkv(qkv, cos, sin);
    return {q, k, v};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotary_qkv_backward(grads[0], grads[1], grads[2], saved[0], saved[1]), {}, {}};
  }
};

// The gradient is linear in those of q, k and v: its own is the turn again.
class RotaryQkvBackwardFunction : public torch::autograd::Function<RotaryQkvBackwardFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv,
                            const at::Tensor& cos, const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    const at::AutoDispatchBelowADInplaceOrView below;
    return rotary_qkv_backward(dq, dk, dv, cos, sin);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    auto [q, k, v] = rotary_qkv(grads[0], saved[0], saved[1]);
    return {q, k, v, {}, {}};
  }
};

void check_constant(const char* op, const at::Tensor& cos, const at::Tensor& sin) {
  TORCH_CHECK(!(cos.defined() && cos.requires_grad()) && !(sin.defined() && sin.requires_grad()), op,
              ": cos and sin are constants, but one requires a gradient; detach it");
}

at::Tensor rotary_autograd(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  check_constant("contextpool::rotary", cos, sin);
  return RotaryFunction::apply(x, cos, sin, back);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> rotary_qkv_autograd(const at::Tensor& qkv, const at::Tensor& cos,
                                                                   const at::Tensor& sin) {
  check_constant("contextpool::rotary_qkv", cos, sin);
  auto parts = RotaryQkvFunction::apply(qkv, cos, sin);
  return {parts[0], parts[1], parts[2]};
}

at::Tensor rotary_qkv_backward_autograd(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv,
                                        const at::Tensor& cos, const at::Tensor& sin) {
  if (!c10::GradMode::is_enabled()) {  // as in an ordinary backward: straight on
    const at::AutoDispatchBelowADInplaceOrView below;
    return rotary_qkv_backward(dq, dk, dv, cos, sin);
  }
  return RotaryQkvBackwardFunction::apply(dq, dk, dv, cos, sin);
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Autograd, m) {
  m.impl("rotary", rotary_autograd);
  m.impl("rotary_qkv", rotary_qkv_autograd);
  m.impl("_rotary_qkv_backward", rotary_qkv_backward_autograd);
}

}  // namespace contextpool
