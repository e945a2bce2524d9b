// cross_entropy on CUDA tensors: one kernel forward, one backward; PyTorch's operators for float64.
#include "kernels/cuda/cross_entropy/cross_entropy.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cross_entropy.h"
#include "ops/storage.h"

namespace contextpool {
namespace {

// The inputs in kernel layout; keeps alive the copies that had to be made.
struct Inputs {
  Inputs(const at::Tensor& logits, const at::Tensor& target, int64_t ignored)
      : logits(logits.contiguous()), target(target.contiguous()) {
    args.rows = logits.size(0);
    args.classes = logits.size(1);
    args.ignored = ignored;
    args.type = storage_type(logits);
    args.logits = this->logits.const_data_ptr();
    args.target = this->target.const_data_ptr<int64_t>();
  }
  at::Tensor logits, target;
  cuda::CrossEntropy args;
};

bool composite(const at::Tensor& logits) { return logits.numel() == 0 || logits.scalar_type() == at::kDouble; }

std::tuple<at::Tensor, at::Tensor> cross_entropy_cuda(const at::Tensor& logits, const at::Tensor& target,
                                                      int64_t ignored) {
  check_cross_entropy(logits, target);
  const c10::cuda::CUDAGuard guard(logits.device());
  if (composite(logits)) return cross_entropy_composite(logits, target, ignored);
  const Inputs in(logits, target, ignored);
  auto loss = at::empty(target.sizes(), logits.options().dtype(at::kFloat));
  auto log_sum = at::empty(target.sizes(), loss.options());
  C10_CUDA_CHECK(cuda::cross_entropy(in.args, loss.mutable_data_ptr<float>(), log_sum.mutable_data_ptr<float>(),
                                     c10::cuda::getCurrentCUDAStream()));
  return {loss, log_sum};
}

at::Tensor cross_entropy_backward_cuda(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& target,
                                       const at::Tensor& log_sum, int64_t ignored) {
  check_cross_entropy_backward(grad, logits, target, log_sum);
  const c10::cuda::CUDAGuard guard(logits.device());
  if (composite(logits)) return cross_entropy_backward_composite(grad, logits, target, log_sum, ignored);
  const Inputs in(logits, target, ignored);
  const auto g = grad.contiguous(), sums = log_sum.contiguous();
  auto dlogits = at::empty(logits.sizes(), logits.options());
  C10_CUDA_CHECK(cuda::cross_entropy_backward(in.args, g.const_data_ptr<float>(), sums.const_data_ptr<float>(),
                                              dlogits.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return dlogits;
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("cross_entropy", cross_entropy_cuda);
  m.impl("_cross_entropy_backward", cross_entropy_backward_cuda);
}

}  // namespace contextpool
