// contextpool::short_convolution: the schema, the checks, and the C++ door.
#include "contextpool/ops/short_convolution.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "checks.h"
#include "short_convolution.h"

namespace contextpool {

constexpr std::string_view kOp = "contextpool::short_convolution";

void check_short_convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             int64_t left) {
  TORCH_CHECK(x.defined() && weight.defined(), kOp, ": x and weight must be tensors, but one is missing");
  for (const auto* t : {&x, &weight}) {
    TORCH_CHECK(is_feature_type(t->scalar_type()), kOp,
                ": tensors must be float64, float32, bfloat16 or float16, but one is ", t->scalar_type());
  }
  TORCH_CHECK(x.device() == weight.device(), kOp, ": x and weight must be on one device, but are on ", x.device(),
              " and ", weight.device());
  TORCH_CHECK(x.dim() >= 2 && weight.dim() == 2, kOp,
              ": x must be [..., tokens, channels] and weight [channels, taps], but are ", shape(x), " and ",
              shape(weight));
  TORCH_SYM_CHECK(weight.sym_size(0).sym_eq(x.sym_size(-1)), kOp, ": x has ", size(x, -1), " channels but weight has ",
                  size(weight, 0));
  TORCH_SYM_CHECK(weight.sym_size(1).sym_gt(left), kOp, ": left must be from 0 to ", size(weight.sym_size(1) - 1),
                  ", the last of the taps, but is ", size(left));
  TORCH_CHECK(left >= 0, kOp, ": left must be at least 0, but is ", size(left));
  if (!bias || !bias->defined()) return;
  TORCH_CHECK(bias->scalar_type() == weight.scalar_type() && bias->device() == weight.device(), kOp,
              ": bias must be as weight, ", weight.scalar_type(), " on ", weight.device(), ", but is ",
              bias->scalar_type(), " on ", bias->device());
  TORCH_CHECK(bias->dim() == 1, kOp, ": bias must be [channels], but is ", shape(*bias));
  TORCH_SYM_CHECK(bias->sym_size(0).sym_eq(x.sym_size(-1)), kOp, ": x has ", size(x, -1), " channels but bias has ",
                  size(*bias, 0));
}

void check_short_convolution_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                      int64_t left) {
  check_short_convolution(x, weight, std::nullopt, left);
  check_grad(kOp, grad, x, x.sym_sizes());
}

at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             int64_t left, bool residual) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("contextpool::short_convolution", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t, bool)>();
  return op.call(x, weight, bias, left, residual);
}

ShortConvolutionGradients short_convolution_backward(const at::Tensor& grad, const at::Tensor& x,
                                                     const at::Tensor& weight, int64_t left, bool residual) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("contextpool::_short_convolution_backward", "")
          .typed<ShortConvolutionGradients(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, bool)>();
  return op.call(grad, x, weight, left, residual);
}

TORCH_LIBRARY_FRAGMENT(contextpool, m) {
  m.def("short_convolution(Tensor x, Tensor weight, Tensor? bias=None, *, int left, bool residual=False) -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "_short_convolution_backward(Tensor grad, Tensor x, Tensor weight, *, int left, bool residual) -> (Tensor, "
      "Tensor, Tensor)",
      {at::Tag::pt2_compliant_tag});
}

}  // namespace contextpool
