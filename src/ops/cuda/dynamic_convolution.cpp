// dynamic_convolution on CUDA tensors: one kernel forward, up to three backward; PyTorch's operators for what these do
// not have (float64, more than 4 taps, a rank above 16).
#include "kernels/cuda/dynamic_convolution/dynamic_convolution.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/dynamic_convolution.h"
#include "ops/storage.h"

namespace contextpool {
namespace {

// The inputs in kernel layout; keeps alive the copies that had to be made.
struct Inputs {
  Inputs(const at::Tensor& of_x, const at::Tensor& of_inner, const at::Tensor& of_up, const at::Tensor& of_weight,
         int64_t left, bool residual)
      : x(of_x.dim() == 3 ? of_x : of_x.reshape({-1, of_x.size(-2), of_x.size(-1)})),
        inner(of_inner.to(at::kFloat).contiguous()),
        up(of_up.to(at::kFloat).contiguous()),
        weight(of_weight.to(at::kFloat).contiguous()) {
    if (x.stride(2) != 1) x = x.contiguous();
    args.batch = x.size(0);
    args.tokens = x.size(1);
    args.targets = inner.size(-2);
    args.channels = x.size(2);
    args.taps = up.size(0);
    args.rank = up.size(2);
    args.left = left;
    args.residual = residual;
    args.type = storage_type(x);
    args.x = x.const_data_ptr();
    args.x_batch_stride = x.stride(0);
    args.x_token_stride = x.stride(1);
    args.inner = inner.const_data_ptr<float>();
    args.up = up.const_data_ptr<float>();
    args.weight = weight.const_data_ptr<float>();
  }

  at::Tensor x, inner, up, weight;
  cuda::DynamicConvolution args;
};

// Whether it is for PyTorch's operators before inputs are laid out for the kernels.
bool is_for_operators(const at::Tensor& x, const at::Tensor& inner) {
  return x.scalar_type() == at::kDouble || x.numel() == 0 || inner.numel() == 0;
}

at::Tensor dynamic_convolution_cuda(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& up,
                                    const at::Tensor& weight, int64_t left, bool residual) {
  check_dynamic_convolution(x, inner, up, weight, left);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto composite = [&] { return dynamic_convolution_composite(x, inner, up, weight, left, residual); };
  if (is_for_operators(x, inner)) return composite();
  const Inputs in(x, inner, up, weight, left, residual);
  if (!cuda::dynamic_convolution_fits(in.args)) return composite();
  auto y = at::empty_symint(dynamic_convolution_sizes(x, inner), x.options());
  C10_CUDA_CHECK(cuda::dynamic_convolution(in.args, y.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return y;
}

DynamicConvolutionGradients dynamic_convolution_backward_cuda(const at::Tensor& grad, const at::Tensor& x,
                                                              const at::Tensor& inner, const at::Tensor& up,
                                                              const at::Tensor& weight, int64_t left, bool residual) {
  check_dynamic_convolution_backward(grad, x, inner, up, weight, left);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto composite = [&] {
    return dynamic_convolution_backward_composite(grad, x, inner, up, weight, left, residual);
  };
  if (is_for_operators(x, inner)) return composite();
  const Inputs in(x, inner, up, weight, left, residual);
  if (!cuda::dynamic_convolution_fits(in.args)) return composite();
  const auto dy = grad.to(x.scalar_type()).contiguous();
  const auto taps = up.size(0), rank = up.size(2), channels = up.size(1);
  auto dx = at::empty(x.sizes(), x.options()), dinner = at::empty(inner.sizes(), in.inner.options());
  const auto sums = at::empty({taps, rank + 1, channels}, in.up.options());
  const auto scratch =
      c10::cuda::CUDACachingAllocator::get()->allocate(cuda::dynamic_convolution_backward_workspace(in.args));
  C10_CUDA_CHECK(cuda::dynamic_convolution_backward(in.args, dy.const_data_ptr(), dx.mutable_data_ptr(),
                                                    dinner.mutable_data_ptr<float>(), sums.mutable_data_ptr<float>(),
                                                    scratch.get(), c10::cuda::getCurrentCUDAStream()));
  auto dup = at::empty(up.sizes(), up.options().memory_format(at::MemoryFormat::Contiguous));
  auto dweight = at::empty(weight.sizes(), weight.options().memory_format(at::MemoryFormat::Contiguous));
  dup.copy_(sums.narrow(1, 0, rank).transpose(1, 2));
  dweight.copy_(sums.select(1, rank).t());
  return {dx, dinner.to(inner.scalar_type()), dup, dweight};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("dynamic_convolution", dynamic_convolution_cuda);
  m.impl("_dynamic_convolution_backward", dynamic_convolution_backward_cuda);
}

}  // namespace contextpool
