// predict_windows on CPU tensors: PyTorch's operators, one after the other.
#include "ops/predict_windows.h"

#include <torch/library.h>

namespace contextpool {
namespace {

PredictedWindows predict_windows_cpu(const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight,
                                     const at::Tensor& out_bias, int64_t left, int64_t sizes, double size_range,
                                     double shift, double least, double span) {
  check_predict_windows(product, bias, weight, out_bias, left, sizes);
  return predict_windows_composite(product, bias, weight, out_bias, left, sizes, {size_range, shift, least, span});
}

PredictWindowsGradients predict_windows_backward_cpu(const at::Tensor& grad_log_weight, const at::Tensor& grad_sigma,
                                                     const at::Tensor& product, const at::Tensor& bias,
                                                     const at::Tensor& weight, const at::Tensor& out_bias,
                                                     const at::Tensor& u, int64_t left, double size_range, double shift,
                                                     double least, double span) {
  check_predict_windows_backward(grad_log_weight, grad_sigma, product, bias, weight, out_bias, u, left);
  return predict_windows_backward_composite(grad_log_weight, grad_sigma, product, bias, weight, out_bias, u, left,
                                            {size_range, shift, least, span});
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CPU, m) {
  m.impl("predict_windows", predict_windows_cpu);
  m.impl("_predict_windows_backward", predict_windows_backward_cpu);
}

}  // namespace contextpool
