// Differentiation of pool1d: the forward saves its three inputs (on CUDA also the plan and the tree that it made), the
// backward is the operator _pool1d_backward. What traces sees the same, where it knows the sizes and there will be a
// backward; else the public operator only.
#include "contextpool/ops/pool1d.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/checks.h"
#include "ops/pool1d.h"

namespace contextpool {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Pooled {
  at::Tensor y, kept;
};

bool has_known_sizes(const at::Tensor& t) {
  const auto sizes = t.sym_sizes();
  return std::all_of(sizes.begin(), sizes.end(),
                     [](const c10::SymInt& size) { return size.maybe_as_int().has_value(); });
}

// Whether _pool1d_keep takes the place of pool1d. What it keeps has a size that follows from those of the inputs, by a
// rule of the kernels that symbols cannot go through.
bool keeps(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma) {
  if (!x.is_cuda() || !log_weight.is_cuda() || !sigma.is_cuda()) return false;
  if (!x.unsafeGetTensorImpl()->is_python_dispatch() && !c10::impl::dispatch_mode_enabled()) return true;
  const bool has_backward =
      c10::GradMode::is_enabled() && (x.requires_grad() || log_weight.requires_grad() || sigma.requires_grad());
  return has_backward && has_known_sizes(x) && has_known_sizes(log_weight) && has_known_sizes(sigma);
}

Pooled pooled(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
              std::string_view algorithm) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (!keeps(x, log_weight, sigma)) return {pool1d(x, log_weight, sigma, causal, algorithm), {}};
  auto [y, kept] = pool1d_keep(x, log_weight, sigma, causal, algorithm);
  return {std::move(y), std::move(kept)};
}

class Pool1dFunction : public torch::autograd::Function<Pool1dFunction> {
 public:
  // Only records what has been done: a GPU is at work by then.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& log_weight,
                            const at::Tensor& sigma, bool causal, std::string_view algorithm, const Pooled& done) {
    ctx->save_for_backward({x, log_weight, sigma, done.kept});
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["algorithm"] = std::string(algorithm);
    return done.y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto kept = saved[3].defined() ? std::optional(saved[3]) : std::nullopt;
    auto [dx, dlog_weight, dsigma] =
        pool1d_backward(grads[0], saved[0], saved[1], saved[2], ctx->saved_data["causal"].toBool(),
                        ctx->saved_data["algorithm"].toStringRef(), kept);
    return {dx, dlog_weight, dsigma, {}, {}, {}};
  }
};

// Exists so that differentiating the gradient is refused with a reason instead of giving silent zeros.
class Pool1dBackwardFunction : public torch::autograd::Function<Pool1dBackwardFunction> {
 public:
  static variable_list forward(AutogradContext* /*ctx*/, const at::Tensor& grad, const at::Tensor& x,
                               const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
                               std::string_view algorithm, const std::optional<at::Tensor>& kept) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [dx, dlog_weight, dsigma] = pool1d_backward(grad, x, log_weight, sigma, causal, algorithm, kept);
    return {dx, dlog_weight, dsigma};
  }

  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& /*grads*/) {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "contextpool::pool1d: the second derivative (double backward) is not available; "
                                "compute first derivatives only (no create_graph=True through this operator)");
  }
};

at::Tensor pool1d_autograd(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
                           std::string_view algorithm) {
  check_defined("contextpool::pool1d", x, log_weight, sigma);
  return Pool1dFunction::apply(x, log_weight, sigma, causal, algorithm,
                               pooled(x, log_weight, sigma, causal, algorithm));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool1d_backward_autograd(const at::Tensor& grad, const at::Tensor& x,
                                                                        const at::Tensor& log_weight,
                                                                        const at::Tensor& sigma, bool causal,
                                                                        std::string_view algorithm,
                                                                        const std::optional<at::Tensor>& kept) {
  if (!c10::GradMode::is_enabled()) {  // as in an ordinary backward: straight on
    const at::AutoDispatchBelowADInplaceOrView below;
    return pool1d_backward(grad, x, log_weight, sigma, causal, algorithm, kept);
  }
  auto grads = Pool1dBackwardFunction::apply(grad, x, log_weight, sigma, causal, algorithm, kept);
  return {grads[0], grads[1], grads[2]};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Autograd, m) {
  m.impl("pool1d", pool1d_autograd);
  m.impl("_pool1d_backward", pool1d_backward_autograd);
}

}  // namespace contextpool
