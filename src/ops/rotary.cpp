// contextpool::rotary and rotary_qkv: the schemas, the checks, and the C++ functions.
#include "contextpool/ops/rotary.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "checks.h"
#include "rotary.h"

namespace contextpool {
namespace {

void check_turns(std::string_view op, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  TORCH_CHECK(x.defined() && cos.defined() && sin.defined(), op,
              ": x, cos and sin must be tensors, but one is missing");
  const auto type = x.scalar_type();
  TORCH_CHECK(is_feature_type(type), op, ": x must be float64, float32, bfloat16 or float16, but is ", type);
  const auto want = type == at::kDouble ? at::kDouble : at::kFloat;
  TORCH_CHECK(cos.scalar_type() == want && sin.scalar_type() == want, op, ": cos and sin must be ", want,
              " beside x of ", type, ", but are ", cos.scalar_type(), " and ", sin.scalar_type());
  TORCH_CHECK(cos.device() == x.device() && sin.device() == x.device(), op,
              ": x, cos and sin must be on one device, but are on ", x.device(), ", ", cos.device(), " and ",
              sin.device());
  TORCH_CHECK(cos.dim() == 2 || cos.dim() == 3, op,
              ": cos must be [tokens, features / 2] or [batch, tokens, features / 2], but is ", shape(cos));
  TORCH_CHECK(cos.sym_sizes() == sin.sym_sizes(), op, ": cos and sin must have one shape, but are ", shape(cos),
              " and ", shape(sin));
}

void check_shape_of_turns(std::string_view op, const at::Tensor& x, const at::Tensor& cos) {
  TORCH_SYM_CHECK((cos.sym_size(-1) * 2).sym_eq(x.sym_size(-1)), op, ": x has ", size(x, -1),
                  " features, which must be twice the turns of a token, but cos is ", shape(cos));
  TORCH_SYM_CHECK(cos.sym_size(-2).sym_eq(x.sym_size(1)), op, ": x has ", size(x, 1), " tokens but cos has ",
                  size(cos, -2), " (x ", shape(x), ", cos ", shape(cos), ")");
  if (cos.dim() == 3) {
    TORCH_SYM_CHECK(cos.sym_size(0).sym_eq(x.sym_size(0)), op, ": x has ", size(x, 0), " rows but cos has ",
                    size(cos, 0), " (x ", shape(x), ", cos ", shape(cos), ")");
  }
}

}  // namespace

void check_rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  constexpr std::string_view op = "contextpool::rotary";
  check_turns(op, x, cos, sin);
  TORCH_CHECK(x.dim() >= 3, op, ": x must be [batch, tokens, ..., features], but is ", shape(x));
  check_shape_of_turns(op, x, cos);
}

void check_rotary_qkv(const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin) {
  constexpr std::string_view op = "contextpool::rotary_qkv";
  check_turns(op, qkv, cos, sin);
  TORCH_CHECK(qkv.dim() == 5, op, ": qkv must be [batch, tokens, 3, heads, features], but is ", shape(qkv));
  TORCH_SYM_CHECK(qkv.sym_size(2).sym_eq(3), op, ": qkv must be [batch, tokens, 3, heads, features], but is ",
                  shape(qkv));
  check_shape_of_turns(op, qkv, cos);
}

void check_rotary_qkv_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& cos,
                               const at::Tensor& sin) {
  constexpr std::string_view op = "contextpool::rotary_qkv";
  check_turns(op, dq, cos, sin);
  TORCH_CHECK(dq.dim() == 4, op, ": the gradients must be [batch, tokens, heads, features], but one is ", shape(dq));
  for (const auto* other : {&dk, &dv}) {
    TORCH_CHECK(other->sym_sizes() == dq.sym_sizes() && other->scalar_type() == dq.scalar_type() &&
                    other->device() == dq.device(),
                op, ": the gradients of q, k and v must be alike, but are ", shape(dq), " ", dq.scalar_type(), " and ",
                shape(*other), " ", other->scalar_type());
  }
  check_shape_of_turns(op, dq, cos);
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("contextpool::rotary", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool)>();
  return op.call(x, cos, sin, back);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> rotary_qkv(const at::Tensor& qkv, const at::Tensor& cos,
                                                          const at::Tensor& sin) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("contextpool::rotary_qkv", "")
                             .typed<std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                                                   const at::Tensor&)>();
  return op.call(qkv, cos, sin);
}

at::Tensor rotary_qkv_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& cos,
                               const at::Tensor& sin) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("contextpool::_rotary_qkv_backward", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                               const at::Tensor&, const at::Tensor&)>();
  return op.call(dq, dk, dv, cos, sin);
}

TORCH_LIBRARY_FRAGMENT(contextpool, m) {
  m.def("rotary(Tensor x, Tensor cos, Tensor sin, *, bool back=False) -> Tensor", {at::Tag::pt2_compliant_tag});
  m.def("rotary_qkv(Tensor qkv, Tensor cos, Tensor sin) -> (Tensor, Tensor, Tensor)", {at::Tag::pt2_compliant_tag});
  m.def("_rotary_qkv_backward(Tensor dq, Tensor dk, Tensor dv, Tensor cos, Tensor sin) -> Tensor",
        {at::Tag::pt2_compliant_tag});
}

}  // namespace contextpool
