// bias_gelu on CUDA tensors: one kernel forward, two backward; PyTorch's operators for float64.
#include "kernels/cuda/bias_gelu/bias_gelu.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/bias_gelu.h"
#include "ops/storage.h"

namespace contextpool {
namespace {

// The inputs in kernel layout; keeps alive the copies that had to be made.
struct Inputs {
  Inputs(const at::Tensor& x, const at::Tensor& bias) : x(x.contiguous()), bias(bias.to(at::kFloat).contiguous()) {
    args.features = x.size(-1);
    args.rows = x.numel() / x.size(-1);
    args.type = storage_type(x);
    args.x = this->x.const_data_ptr();
    args.bias = this->bias.const_data_ptr<float>();
  }
  at::Tensor x, bias;
  cuda::BiasGelu args;
};

bool composite(const at::Tensor& x) { return x.numel() == 0 || x.scalar_type() == at::kDouble; }

at::Tensor bias_gelu_cuda(const at::Tensor& x, const at::Tensor& bias) {
  check_bias_gelu(x, bias);
  const c10::cuda::CUDAGuard guard(x.device());
  if (composite(x)) return bias_gelu_composite(x, bias);
  const Inputs in(x, bias);
  auto y = at::empty(x.sizes(), x.options());
  C10_CUDA_CHECK(cuda::bias_gelu(in.args, y.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return y;
}

std::tuple<at::Tensor, at::Tensor> bias_gelu_backward_cuda(const at::Tensor& grad, const at::Tensor& x,
                                                           const at::Tensor& bias) {
  check_bias_gelu_backward(grad, x, bias);
  const c10::cuda::CUDAGuard guard(x.device());
  if (composite(x)) return bias_gelu_backward_composite(grad, x, bias);
  const Inputs in(x, bias);
  const auto dy = grad.contiguous();
  auto dx = at::empty(x.sizes(), x.options()), dbias = at::empty(bias.sizes(), in.bias.options());
  const auto scratch = c10::cuda::CUDACachingAllocator::get()->allocate(cuda::bias_gelu_backward_workspace(in.args));
  C10_CUDA_CHECK(cuda::bias_gelu_backward(in.args, dy.const_data_ptr(), dx.mutable_data_ptr(),
                                          dbias.mutable_data_ptr<float>(), scratch.get(),
                                          c10::cuda::getCurrentCUDAStream()));
  return {dx, dbias.to(bias.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("bias_gelu", bias_gelu_cuda);
  m.impl("_bias_gelu_backward", bias_gelu_backward_cuda);
}

}  // namespace contextpool
