// Differentiation of cross_entropy: the forward keeps its inputs and each row's log of sums.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/cross_entropy.h"

namespace contextpool {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class CrossEntropyFunction : public torch::autograd::Function<CrossEntropyFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& logits, const at::Tensor& target,
                               int64_t ignored) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [loss, log_sum] = cross_entropy_results(logits, target, ignored);
    ctx->save_for_backward({logits, target, log_sum});
    ctx->saved_data["ignored"] = ignored;
    ctx->mark_non_differentiable({log_sum});
    return {loss, log_sum};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {cross_entropy_backward(grads[0], saved[0], saved[1], saved[2], ctx->saved_data["ignored"].toInt()), {}, {}};
  }
};

std::tuple<at::Tensor, at::Tensor> cross_entropy_autograd(const at::Tensor& logits, const at::Tensor& target,
                                                          int64_t ignored) {
  check_cross_entropy(logits, target);
  auto results = CrossEntropyFunction::apply(logits, target, ignored);
  return {results[0], results[1]};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Autograd, m) {
  m.impl("cross_entropy", cross_entropy_autograd);
  m.impl("_cross_entropy_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace contextpool
