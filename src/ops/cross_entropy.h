// Shared by the registrations of cross_entropy: the checks and the dispatcher calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace contextpool {

void check_cross_entropy(const at::Tensor& logits, const at::Tensor& target);
void check_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& target,
                                  const at::Tensor& log_sum);

// In which losses are given.
inline at::ScalarType loss_type(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Each row's loss, and the logarithm of its sum of exponentials.
std::tuple<at::Tensor, at::Tensor> cross_entropy_results(const at::Tensor& logits, const at::Tensor& target,
                                                         int64_t ignored);
at::Tensor cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& target,
                                  const at::Tensor& log_sum, int64_t ignored);

// The same by PyTorch's operators: on the CPU, and on CUDA where the kernels do not go.
std::tuple<at::Tensor, at::Tensor> cross_entropy_composite(const at::Tensor& logits, const at::Tensor& target,
                                                           int64_t ignored);
at::Tensor cross_entropy_backward_composite(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& target,
                                            const at::Tensor& log_sum, int64_t ignored);

}  // namespace contextpool
