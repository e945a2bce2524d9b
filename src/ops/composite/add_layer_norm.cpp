// add_layer_norm by PyTorch's operators.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include "ops/add_layer_norm.h"

namespace contextpool {

AddLayerNormResults add_layer_norm_composite(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                                             const at::Tensor& bias, double eps, std::optional<at::ScalarType> type) {
  const auto sum = x.add(branch).contiguous();
  const auto compute = statistics_type(sum);
  auto [normed, mean, rstd] =
      at::native_layer_norm(sum.to(compute), {x.size(-1)}, weight.to(compute), bias.to(compute), eps);
  return {sum, normed.to(type.value_or(sum.scalar_type())).contiguous(), mean.squeeze(-1), rstd.squeeze(-1)};
}

AddLayerNormResults add_layer_norm_backward_composite(const std::optional<at::Tensor>& dsum, const at::Tensor& dnormed,
                                                      const at::Tensor& sum, const at::Tensor& weight,
                                                      const at::Tensor& mean, const at::Tensor& rstd,
                                                      std::optional<at::ScalarType> narrow) {
  const auto compute = statistics_type(sum);
  const auto scale = weight.to(compute);
  auto [dx, dweight, dbias] =
      at::native_layer_norm_backward(dnormed.to(compute), sum.to(compute), {sum.size(-1)}, mean.unsqueeze(-1),
                                     rstd.unsqueeze(-1), scale, scale, {true, true, true});
  const auto total = dsum ? dx.add(dsum->to(compute)) : dx;
  const auto result = total.to(sum.scalar_type()).contiguous();
  // An operator's results share no memory.
  return {result, narrow ? total.to(*narrow, false, /*copy=*/true).contiguous() : at::empty({0}, sum.options()),
          dweight.to(weight.scalar_type()), dbias.to(weight.scalar_type())};
}

}  // namespace contextpool
