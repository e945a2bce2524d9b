// Shared by the registrations of predict_windows: the checks, the dispatcher calls, and the same by PyTorch's
// operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "contextpool/ops/predict_windows.h"

namespace contextpool {

// log_weight, sigma, and u of the sizes [B, sizes, N], which the backward wants.
using PredictedWindows = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
// Of product, bias, weight and out_bias.
using PredictWindowsGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

void check_predict_windows(const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight,
                           const at::Tensor& out_bias, int64_t left, int64_t sizes);
void check_predict_windows_backward(const at::Tensor& grad_log_weight, const at::Tensor& grad_sigma,
                                    const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight,
                                    const at::Tensor& out_bias, const at::Tensor& u, int64_t left);

PredictedWindows predict_windows_call(const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight,
                                      const at::Tensor& out_bias, int64_t left, int64_t sizes, const SizeMap& map);
PredictWindowsGradients predict_windows_backward(const at::Tensor& grad_log_weight, const at::Tensor& grad_sigma,
                                                 const at::Tensor& product, const at::Tensor& bias,
                                                 const at::Tensor& weight, const at::Tensor& out_bias,
                                                 const at::Tensor& u, int64_t left, const SizeMap& map);

// The type of the results.
at::ScalarType windows_type(const at::Tensor& product);

// The same by PyTorch's operators: on the CPU, and on CUDA where the kernels do not go.
PredictedWindows predict_windows_composite(const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight,
                                           const at::Tensor& out_bias, int64_t left, int64_t sizes, const SizeMap& map);
PredictWindowsGradients predict_windows_backward_composite(const at::Tensor& grad_log_weight,
                                                           const at::Tensor& grad_sigma, const at::Tensor& product,
                                                           const at::Tensor& bias, const at::Tensor& weight,
                                                           const at::Tensor& out_bias, const at::Tensor& u,
                                                           int64_t left, const SizeMap& map);
// With checks, as the dispatcher calls them.
PredictedWindows predict_windows_by_operators(const at::Tensor& product, const at::Tensor& bias,
                                              const at::Tensor& weight, const at::Tensor& out_bias, int64_t left,
                                              int64_t sizes, double size_range, double shift, double least,
                                              double span);
PredictWindowsGradients predict_windows_backward_by_operators(const at::Tensor& grad_log_weight,
                                                              const at::Tensor& grad_sigma, const at::Tensor& product,
                                                              const at::Tensor& bias, const at::Tensor& weight,
                                                              const at::Tensor& out_bias, const at::Tensor& u,
                                                              int64_t left, double size_range, double shift,
                                                              double least, double span);

}  // namespace contextpool
