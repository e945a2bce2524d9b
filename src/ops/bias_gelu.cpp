// contextpool::bias_gelu: the schema, the checks, and the C++ function.
#include "contextpool/ops/bias_gelu.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "bias_gelu.h"
#include "checks.h"

namespace contextpool {

constexpr std::string_view kOp = "contextpool::bias_gelu";

void check_bias_gelu(const at::Tensor& x, const at::Tensor& bias) {
  TORCH_CHECK(x.defined() && bias.defined(), kOp, ": x and bias must be tensors, but one is missing");
  for (const auto* t : {&x, &bias}) {
    TORCH_CHECK(is_feature_type(t->scalar_type()), kOp,
                ": tensors must be float64, float32, bfloat16 or float16, but one is ", t->scalar_type());
  }
  TORCH_CHECK(x.device() == bias.device(), kOp, ": x and bias must be on one device, but are on ", x.device(), " and ",
              bias.device());
  TORCH_CHECK(x.dim() >= 1 && bias.dim() == 1, kOp, ": x must be [..., features] and bias [features], but are ",
              shape(x), " and ", shape(bias));
  TORCH_SYM_CHECK(bias.sym_size(0).sym_eq(x.sym_size(-1)), kOp, ": x has ", size(x, -1), " features but bias has ",
                  size(bias, 0));
}

void check_bias_gelu_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& bias) {
  check_bias_gelu(x, bias);
  check_grad(kOp, grad, x, x.sym_sizes());
}

at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("contextpool::bias_gelu", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(x, bias);
}

std::tuple<at::Tensor, at::Tensor> bias_gelu_backward(const at::Tensor& grad, const at::Tensor& x,
                                                      const at::Tensor& bias) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("contextpool::_bias_gelu_backward", "")
          .typed<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&)>();
  return op.call(grad, x, bias);
}

TORCH_LIBRARY_FRAGMENT(contextpool, m) {
  m.def("bias_gelu(Tensor x, Tensor bias) -> Tensor", {at::Tag::pt2_compliant_tag});
  m.def("_bias_gelu_backward(Tensor grad, Tensor x, Tensor bias) -> (Tensor, Tensor)", {at::Tag::pt2_compliant_tag});
}

}  // namespace contextpool
