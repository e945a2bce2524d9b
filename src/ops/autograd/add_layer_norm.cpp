// Differentiation of add_layer_norm: the forward keeps the sum and the statistics of its rows; x and branch get the
// same gradient, each in its own type.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/add_layer_norm.h"

namespace contextpool {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class AddLayerNormFunction : public torch::autograd::Function<AddLayerNormFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& branch,
                               const at::Tensor& weight, const at::Tensor& bias, double eps,
                               std::optional<at::ScalarType> type) {
    ctx->set_materialize_grads(false);
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [sum, normed, mean, rstd] = add_layer_norm_results(x, branch, weight, bias, eps, type);
    ctx->save_for_backward({sum, weight, mean, rstd});
    ctx->saved_data["x"] = static_cast<int64_t>(x.scalar_type());
    ctx->saved_data["branch"] = static_cast<int64_t>(branch.scalar_type());
    ctx->saved_data["bias"] = static_cast<int64_t>(bias.scalar_type());
    ctx->mark_non_differentiable({mean, rstd});
    return {sum, normed, mean, rstd};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &dsum = grads[0], &dnormed = grads[1], &sum = saved[0];
    const auto type = [&](const char* of) { return static_cast<at::ScalarType>(ctx->saved_data[of].toInt()); };
    const auto x = type("x"), branch = type("branch");
    if (!dnormed.defined()) {  // only the sum was used
      if (!dsum.defined()) return {{}, {}, {}, {}, {}, {}};
      return {dsum.to(x), dsum.to(branch), {}, {}, {}, {}};
    }
    const auto other = x == sum.scalar_type() ? branch : x;
    const auto narrow = other == sum.scalar_type() ? std::nullopt : std::optional(other);
    auto [like_sum, like_other, dweight, dbias] = add_layer_norm_backward(
        dsum.defined() ? std::optional(dsum) : std::nullopt, dnormed, sum, saved[1], saved[2], saved[3], narrow);
    return {x == sum.scalar_type() ? like_sum : like_other,
            branch == sum.scalar_type() ? like_sum : like_other,
            dweight,
            dbias.to(type("bias")),
            {},
            {}};
  }
};

AddLayerNormResults add_layer_norm_autograd(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                                            const at::Tensor& bias, double eps, std::optional<at::ScalarType> type) {
  check_add_layer_norm(x, branch, weight, bias, type);
  auto results = AddLayerNormFunction::apply(x, branch, weight, bias, eps, type);
  return {results[0], results[1], results[2], results[3]};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Autograd, m) {
  m.impl("add_layer_norm", add_layer_norm_autograd);
  m.impl("_add_layer_norm_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace contextpool
