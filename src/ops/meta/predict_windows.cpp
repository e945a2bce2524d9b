// Shapes, dtypes and strides of predict_windows without data: what torch.compile and torch.export trace with.
#include "ops/predict_windows.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace contextpool {
namespace {

PredictedWindows predict_windows_meta(const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight,
                                      const at::Tensor& out_bias, int64_t left, int64_t sizes, double /*size_range*/,
                                      double /*shift*/, double /*least*/, double /*span*/) {
  check_predict_windows(product, bias, weight, out_bias, left, sizes);
  const auto rows = [&](const c10::SymInt& channels) {
    return at::empty_symint({product.sym_size(0), channels, product.sym_size(1)},
                            product.options().dtype(windows_type(product)));
  };
  return {rows(out_bias.sym_size(0) - sizes), rows(sizes), rows(sizes)};
}

PredictWindowsGradients predict_windows_backward_meta(const at::Tensor& grad_log_weight, const at::Tensor& grad_sigma,
                                                      const at::Tensor& product, const at::Tensor& bias,
                                                      const at::Tensor& weight, const at::Tensor& out_bias,
                                                      const at::Tensor& u, int64_t left, double /*size_range*/,
                                                      double /*shift*/, double /*least*/, double /*span*/) {
  check_predict_windows_backward(grad_log_weight, grad_sigma, product, bias, weight, out_bias, u, left);
  const auto like = [](const at::Tensor& t) { return at::empty_symint(t.sym_sizes(), t.options()); };
  return {like(product), like(bias), like(weight), like(out_bias)};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Meta, m) {
  m.impl("predict_windows", predict_windows_meta);
  m.impl("_predict_windows_backward", predict_windows_backward_meta);
}

}  // namespace contextpool
