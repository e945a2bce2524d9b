// dynamic_convolution by PyTorch's operators, a sum over the taps of linear products times shifted tokens: on CUDA, for
// what the kernels there do not have. Autocast must not take the products to half types: its key is still there.
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <vector>

#include "ops/dynamic_convolution.h"

namespace contextpool {
namespace {

at::ScalarType sum_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// The targets that tap k of a row counts for, and the tokens that they read.
struct Reach {
  Reach(int64_t k, int64_t left, int64_t tokens, int64_t targets)
      : from(tokens - targets - left + k),
        begin(std::clamp<int64_t>(-from, 0, targets)),
        end(std::clamp<int64_t>(tokens - from, begin, targets)) {}
  at::Tensor of_x(const at::Tensor& x) const { return x.slice(-2, begin + from, end + from); }
  at::Tensor of_targets(const at::Tensor& t) const { return t.slice(-2, begin, end); }
  bool none() const { return begin == end; }
  int64_t from, begin, end;
};

// The inputs in the type of sums.
struct InSumType {
  InSumType(const at::Tensor& of_x, const at::Tensor& of_inner, const at::Tensor& of_up, const at::Tensor& of_weight)
      : x(of_x.to(sum_type(of_x))),
        inner(of_inner.to(x.scalar_type())),
        up(of_up.to(x.scalar_type())),
        weight(of_weight.to(x.scalar_type())) {}
  int64_t taps() const { return up.size(0); }
  Reach reach(int64_t k, int64_t left) const { return {k, left, x.size(-2), inner.size(-2)}; }
  at::Tensor targets_of(const at::Tensor& t) const { return t.slice(-2, x.size(-2) - inner.size(-2)); }
  at::Tensor coefficients(int64_t k, const Reach& reach) const {
    return at::linear(reach.of_targets(inner), up.select(0, k), weight.select(1, k));
  }
  at::Tensor x, inner, up, weight;
};

}  // namespace

at::Tensor dynamic_convolution_composite(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& up,
                                         const at::Tensor& weight, int64_t left, bool residual) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const InSumType in(x, inner, up, weight);
  const auto result = dynamic_convolution_sizes(x, inner);
  auto y = at::zeros_symint(result, in.x.options());
  for (int64_t k = 0; k < in.taps(); ++k) {
    const auto reach = in.reach(k, left);
    if (!reach.none()) reach.of_targets(y).addcmul_(in.coefficients(k, reach), reach.of_x(in.x));
  }
  if (residual) y += in.targets_of(in.x);
  return y.to(x.scalar_type());
}

DynamicConvolutionGradients dynamic_convolution_backward_composite(const at::Tensor& grad, const at::Tensor& x,
                                                                   const at::Tensor& inner, const at::Tensor& up,
                                                                   const at::Tensor& weight, int64_t left,
                                                                   bool residual) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const InSumType in(x, inner, up, weight);
  const auto dy = grad.to(in.x.scalar_type());
  auto dx = at::zeros(x.sizes(), in.x.options()), dinner = at::zeros(inner.sizes(), in.x.options());
  std::vector<at::Tensor> dup, dweight;
  const auto flat = [](const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); };
  for (int64_t k = 0; k < in.taps(); ++k) {
    const auto reach = in.reach(k, left);
    const auto d = reach.of_targets(dy), g = d.mul(reach.of_x(in.x));
    if (!reach.none()) {
      reach.of_x(dx).addcmul_(in.coefficients(k, reach), d);
      reach.of_targets(dinner) += at::linear(g, in.up.select(0, k).t());
    }
    dup.push_back(flat(g).t().matmul(flat(reach.of_targets(in.inner))));
    dweight.push_back(flat(g).sum(0));
  }
  if (residual) in.targets_of(dx) += dy;
  return {dx.to(x.scalar_type()), dinner.to(inner.scalar_type()), at::stack(dup).to(up.scalar_type()),
          at::stack(dweight, 1).to(weight.scalar_type())};
}

}  // namespace contextpool
