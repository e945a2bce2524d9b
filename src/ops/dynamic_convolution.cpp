// contextpool::dynamic_convolution: the schema, the checks, and the C++ door.
#include "contextpool/ops/dynamic_convolution.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>

#include "checks.h"
#include "dynamic_convolution.h"

namespace contextpool {

constexpr std::string_view kOp = "contextpool::dynamic_convolution";

namespace {

struct Named {
  const char* name;
  const at::Tensor& tensor;
};

void check_tensors(const std::array<Named, 4>& inputs) {
  for (const auto& [name, t] : inputs) {
    TORCH_CHECK(t.defined(), kOp, ": ", name, " must be a tensor, but is missing (None)");
    TORCH_CHECK(is_feature_type(t.scalar_type()), kOp, ": ", name,
                " must be float64, float32, bfloat16 or float16, but is ", t.scalar_type());
    TORCH_CHECK(t.device() == inputs[0].tensor.device(), kOp, ": all tensors must be on one device, but x is on ",
                inputs[0].tensor.device(), " and ", name, " on ", t.device());
  }
}

}  // namespace

void check_dynamic_convolution(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& up,
                               const at::Tensor& weight, int64_t left) {
  check_tensors({{{"x", x}, {"inner", inner}, {"up", up}, {"weight", weight}}});
  TORCH_CHECK(x.dim() >= 2 && inner.dim() == x.dim(), kOp,
              ": x must be [..., tokens, channels] and inner [..., targets, rank] beside it, but are ", shape(x),
              " and ", shape(inner));
  for (int64_t d = 0; d < x.dim() - 2; ++d) {
    TORCH_SYM_CHECK(inner.sym_size(d).sym_eq(x.sym_size(d)), kOp, ": x and inner must have the same rows, but are ",
                    shape(x), " and ", shape(inner));
  }
  TORCH_SYM_CHECK(inner.sym_size(-2).sym_le(x.sym_size(-2)), kOp, ": inner has ", size(inner, -2),
                  " targets but x has only ", size(x, -2), " tokens");
  TORCH_CHECK(up.dim() == 3 && weight.dim() == 2, kOp,
              ": up must be [taps, channels, rank] and weight [channels, taps], but are ", shape(up), " and ",
              shape(weight));
  TORCH_SYM_CHECK(up.sym_size(2).sym_eq(inner.sym_size(-1)), kOp, ": inner is of rank ", size(inner, -1),
                  " but up of rank ", size(up, 2));
  TORCH_SYM_CHECK(weight.sym_size(0).sym_eq(x.sym_size(-1)), kOp, ": x has ", size(x, -1), " channels but weight has ",
                  size(weight, 0));
  TORCH_SYM_CHECK(up.sym_size(1).sym_eq(x.sym_size(-1)), kOp, ": x has ", size(x, -1), " channels but up has ",
                  size(up, 1));
  TORCH_SYM_CHECK(up.sym_size(0).sym_eq(weight.sym_size(1)), kOp, ": weight has ", size(weight, 1), " taps but up has ",
                  size(up, 0));
  TORCH_SYM_CHECK(weight.sym_size(1).sym_gt(left), kOp, ": left must be from 0 to ", size(weight.sym_size(1) - 1),
                  ", the last of the taps, but is ", size(left));
  TORCH_CHECK(left >= 0, kOp, ": left must be at least 0, but is ", size(left));
}

void check_dynamic_convolution_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& inner,
                                        const at::Tensor& up, const at::Tensor& weight, int64_t left) {
  check_dynamic_convolution(x, inner, up, weight, left);
  check_grad(kOp, grad, x, dynamic_convolution_sizes(x, inner));
}

at::Tensor dynamic_convolution(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& up,
                               const at::Tensor& weight, int64_t left, bool residual) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("contextpool::dynamic_convolution", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                               const at::Tensor&, int64_t, bool)>();
  return op.call(x, inner, up, weight, left, residual);
}

DynamicConvolutionGradients dynamic_convolution_backward(const at::Tensor& grad, const at::Tensor& x,
                                                         const at::Tensor& inner, const at::Tensor& up,
                                                         const at::Tensor& weight, int64_t left, bool residual) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("contextpool::_dynamic_convolution_backward", "")
                             .typed<DynamicConvolutionGradients(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                                const at::Tensor&, const at::Tensor&, int64_t, bool)>();
  return op.call(grad, x, inner, up, weight, left, residual);
}

TORCH_LIBRARY_FRAGMENT(contextpool, m) {
  m.def(
      "dynamic_convolution(Tensor x, Tensor inner, Tensor up, Tensor weight, *, int left, bool residual=False) -> "
      "Tensor",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_dynamic_convolution_backward(Tensor grad, Tensor x, Tensor inner, Tensor up, Tensor weight, *, int left, bool "
      "residual) -> (Tensor, Tensor, Tensor, Tensor)",
      {at::Tag::pt2_compliant_tag});
}

}  // namespace contextpool
