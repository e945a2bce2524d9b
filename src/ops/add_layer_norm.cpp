// contextpool::add_layer_norm: the schema, the checks, and the C++ function.
#include "contextpool/ops/add_layer_norm.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "add_layer_norm.h"
#include "checks.h"

namespace contextpool {

constexpr std::string_view kOp = "contextpool::add_layer_norm";

void check_add_layer_norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                          const at::Tensor& bias, std::optional<at::ScalarType> type) {
  TORCH_CHECK(x.defined() && branch.defined() && weight.defined() && bias.defined(), kOp,
              ": x, branch, weight and bias must be tensors, but one is missing");
  for (const auto* t : {&x, &branch, &weight, &bias}) {
    TORCH_CHECK(is_feature_type(t->scalar_type()), kOp,
                ": tensors must be float64, float32, bfloat16 or float16, but one is ", t->scalar_type());
    TORCH_CHECK(t->device() == x.device(), kOp, ": tensors must be on one device, but are on ", x.device(), " and ",
                t->device());
  }
  const auto promoted = c10::promoteTypes(x.scalar_type(), branch.scalar_type());
  TORCH_CHECK(promoted == x.scalar_type() || promoted == branch.scalar_type(), kOp,
              ": one of x and branch must have the type of their sum, but they are ", x.scalar_type(), " and ",
              branch.scalar_type(), "; cast one");
  TORCH_CHECK(!type || is_feature_type(*type), kOp, ": dtype must be float64, float32, bfloat16 or float16, but is ",
              *type);
  TORCH_CHECK(x.dim() >= 1, kOp, ": x must be [..., features], but is ", shape(x));
  TORCH_CHECK(branch.sym_sizes() == x.sym_sizes(), kOp, ": x and branch must have one shape, but are ", shape(x),
              " and ", shape(branch));
  for (const auto* t : {&weight, &bias}) {
    TORCH_CHECK(t->dim() == 1, kOp, ": weight and bias must be [features], but one is ", shape(*t));
    TORCH_SYM_CHECK(t->sym_size(0).sym_eq(x.sym_size(-1)), kOp, ": x has ", size(x, -1),
                    " features but weight or bias has ", size(*t, 0));
  }
}

void check_add_layer_norm_backward(const std::optional<at::Tensor>& dsum, const at::Tensor& dnormed,
                                   const at::Tensor& sum, const at::Tensor& weight) {
  TORCH_CHECK(dnormed.sym_sizes() == sum.sym_sizes() && (!dsum || dsum->sym_sizes() == sum.sym_sizes()), kOp,
              ": gradients must have the shape of the sum, ", shape(sum));
  TORCH_CHECK(!dsum || dsum->scalar_type() == sum.scalar_type(), kOp, ": the sum's gradient must be ",
              sum.scalar_type(), ", but is ", dsum ? dsum->scalar_type() : sum.scalar_type());
  TORCH_CHECK(dnormed.device() == sum.device() && weight.device() == sum.device(), kOp,
              ": tensors must be on one device, but are on ", sum.device(), " and ", dnormed.device());
}

AddLayerNorm add_layer_norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                            const at::Tensor& bias, double eps, std::optional<at::ScalarType> type) {
  const auto results = add_layer_norm_results(x, branch, weight, bias, eps, type);
  return {std::get<0>(results), std::get<1>(results)};
}

AddLayerNormResults add_layer_norm_results(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                                           const at::Tensor& bias, double eps, std::optional<at::ScalarType> type) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("contextpool::add_layer_norm", "")
                             .typed<AddLayerNormResults(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                        const at::Tensor&, double, std::optional<at::ScalarType>)>();
  return op.call(x, branch, weight, bias, eps, type);
}

AddLayerNormResults add_layer_norm_backward(const std::optional<at::Tensor>& dsum, const at::Tensor& dnormed,
                                            const at::Tensor& sum, const at::Tensor& weight, const at::Tensor& mean,
                                            const at::Tensor& rstd, std::optional<at::ScalarType> narrow) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("contextpool::_add_layer_norm_backward", "")
                             .typed<AddLayerNormResults(const std::optional<at::Tensor>&, const at::Tensor&,
                                                        const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                        const at::Tensor&, std::optional<at::ScalarType>)>();
  return op.call(dsum, dnormed, sum, weight, mean, rstd, narrow);
}

TORCH_LIBRARY_FRAGMENT(contextpool, m) {
  m.def(
      "add_layer_norm(Tensor x, Tensor branch, Tensor weight, Tensor bias, *, float eps=1e-5, ScalarType? dtype=None) "
      "-> (Tensor sum, Tensor normed, Tensor mean, Tensor rstd)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_add_layer_norm_backward(Tensor? dsum, Tensor dnormed, Tensor sum, Tensor weight, Tensor mean, Tensor rstd, *, "
      "ScalarType? narrow) -> (Tensor, Tensor, Tensor, Tensor)",
      {at::Tag::pt2_compliant_tag});
}

}  // namespace contextpool
