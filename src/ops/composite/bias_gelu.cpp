// bias_gelu by PyTorch's operators.
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include "ops/bias_gelu.h"

namespace contextpool {
namespace {

at::ScalarType compute_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace

at::Tensor bias_gelu_composite(const at::Tensor& x, const at::Tensor& bias) {
  const auto type = compute_type(x);
  return at::gelu(x.to(type).add(bias.to(type))).to(x.scalar_type()).contiguous();
}

std::tuple<at::Tensor, at::Tensor> bias_gelu_backward_composite(const at::Tensor& grad, const at::Tensor& x,
                                                                const at::Tensor& bias) {
  const auto type = compute_type(x);
  const auto dz = at::gelu_backward(grad.to(type), x.to(type).add(bias.to(type)));
  return {dz.to(x.scalar_type()).contiguous(), dz.unsqueeze(0).flatten(0, -2).sum(0).to(bias.scalar_type())};
}

}  // namespace contextpool
