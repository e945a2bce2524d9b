// cross_entropy on CPU tensors: PyTorch's operators, one after the other.
#include "ops/cross_entropy.h"

#include <torch/library.h>

namespace contextpool {
namespace {

std::tuple<at::Tensor, at::Tensor> cross_entropy_cpu(const at::Tensor& logits, const at::Tensor& target,
                                                     int64_t ignored) {
  check_cross_entropy(logits, target);
  return cross_entropy_composite(logits, target, ignored);
}

at::Tensor cross_entropy_backward_cpu(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& target,
                                      const at::Tensor& log_sum, int64_t ignored) {
  check_cross_entropy_backward(grad, logits, target, log_sum);
  return cross_entropy_backward_composite(grad, logits, target, log_sum, ignored);
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CPU, m) {
  m.impl("cross_entropy", cross_entropy_cpu);
  m.impl("_cross_entropy_backward", cross_entropy_backward_cpu);
}

}  // namespace contextpool
