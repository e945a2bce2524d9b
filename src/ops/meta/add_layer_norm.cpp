// Shapes, dtypes and strides of add_layer_norm without data: what torch.compile and torch.export trace with.
#include "ops/add_layer_norm.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace contextpool {
namespace {

AddLayerNormResults add_layer_norm_meta(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                                        const at::Tensor& bias, double /*eps*/, std::optional<at::ScalarType> type) {
  check_add_layer_norm(x, branch, weight, bias, type);
  const auto promoted = c10::promoteTypes(x.scalar_type(), branch.scalar_type());
  const auto sizes = x.sym_sizes();
  const auto sum = at::empty_symint(sizes, x.options().dtype(promoted));
  const auto statistics = [&] {
    return at::empty_symint(sizes.slice(0, sizes.size() - 1), x.options().dtype(statistics_type(sum)));
  };
  return {sum, at::empty_symint(sizes, x.options().dtype(type.value_or(promoted))), statistics(), statistics()};
}

AddLayerNormResults add_layer_norm_backward_meta(const std::optional<at::Tensor>& dsum, const at::Tensor& dnormed,
                                                 const at::Tensor& sum, const at::Tensor& weight,
                                                 const at::Tensor& /*mean*/, const at::Tensor& /*rstd*/,
                                                 std::optional<at::ScalarType> narrow) {
  check_add_layer_norm_backward(dsum, dnormed, sum, weight);
  const auto column = [&] { return at::empty_symint(weight.sym_sizes(), weight.options()); };
  return {at::empty_symint(sum.sym_sizes(), sum.options()),
          narrow ? at::empty_symint(sum.sym_sizes(), sum.options().dtype(narrow)) : at::empty({0}, sum.options()),
          column(), column()};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Meta, m) {
  m.impl("add_layer_norm", add_layer_norm_meta);
  m.impl("_add_layer_norm_backward", add_layer_norm_backward_meta);
}

}  // namespace contextpool
