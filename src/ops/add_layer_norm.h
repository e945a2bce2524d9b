// Shared by the registrations of add_layer_norm: the checks and the dispatcher calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace contextpool {

using AddLayerNormResults = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

void check_add_layer_norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                          const at::Tensor& bias, std::optional<at::ScalarType> type);
void check_add_layer_norm_backward(const std::optional<at::Tensor>& dsum, const at::Tensor& dnormed,
                                   const at::Tensor& sum, const at::Tensor& weight);

// In which statistics are kept: float64 beside float64, else float32.
inline at::ScalarType statistics_type(const at::Tensor& sum) {
  return sum.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// sum, normed, and of each row the mean and 1 / sqrt(variance + eps).
AddLayerNormResults add_layer_norm_results(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                                           const at::Tensor& bias, double eps, std::optional<at::ScalarType> type);

// The gradients of the sum (with dsum, where there is one), the same in the type `narrow` where that is given (else
// empty), of weight and of bias.
AddLayerNormResults add_layer_norm_backward(const std::optional<at::Tensor>& dsum, const at::Tensor& dnormed,
                                            const at::Tensor& sum, const at::Tensor& weight, const at::Tensor& mean,
                                            const at::Tensor& rstd, std::optional<at::ScalarType> narrow);

// The same by PyTorch's operators: on the CPU, and on CUDA where the kernels do not go.
AddLayerNormResults add_layer_norm_composite(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                                             const at::Tensor& bias, double eps, std::optional<at::ScalarType> type);
AddLayerNormResults add_layer_norm_backward_composite(const std::optional<at::Tensor>& dsum, const at::Tensor& dnormed,
                                                      const at::Tensor& sum, const at::Tensor& weight,
                                                      const at::Tensor& mean, const at::Tensor& rstd,
                                                      std::optional<at::ScalarType> narrow);

}  // namespace contextpool
