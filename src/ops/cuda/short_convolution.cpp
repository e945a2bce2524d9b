// short_convolution on CUDA tensors: one kernel forward, two backward; PyTorch's operators for what these do not have
// (float64, more than 32 taps).
#include "kernels/cuda/short_convolution/short_convolution.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/short_convolution.h"
#include "ops/storage.h"

namespace contextpool {
namespace {

// The inputs in kernel layout; keeps alive the copies that had to be made.
struct Inputs {
  Inputs(const at::Tensor& of_x, const at::Tensor& of_weight, const std::optional<at::Tensor>& of_bias, int64_t left,
         bool residual)
      : x(of_x.dim() == 3 ? of_x : of_x.reshape({-1, of_x.size(-2), of_x.size(-1)})),
        weight(of_weight.to(at::kFloat).t().contiguous()) {
    if (x.stride(2) != 1) x = x.contiguous();
    if (of_bias && of_bias->defined()) bias = of_bias->to(at::kFloat).contiguous();
    args.batch = x.size(0);
    args.tokens = x.size(1);
    args.channels = x.size(2);
    args.taps = weight.size(0);
    args.left = left;
    args.residual = residual;
    args.type = storage_type(x);
    args.x = x.const_data_ptr();
    args.x_batch_stride = x.stride(0);
    args.x_token_stride = x.stride(1);
    args.weight = weight.const_data_ptr<float>();
    if (bias.defined()) args.bias = bias.const_data_ptr<float>();
  }

  at::Tensor x, weight, bias;
  cuda::ShortConvolution args;
};

at::Tensor short_convolution_cuda(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                  int64_t left, bool residual) {
  check_short_convolution(x, weight, bias, left);
  const c10::cuda::CUDAGuard guard(x.device());
  auto y = at::empty(x.sizes(), x.options());
  if (y.numel() == 0) return y;
  const Inputs in(x, weight, bias, left, residual);
  if (!cuda::short_convolution_fits(in.args)) return short_convolution_composite(x, weight, bias, left, residual);
  C10_CUDA_CHECK(cuda::short_convolution(in.args, y.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return y;
}

ShortConvolutionGradients short_convolution_backward_cuda(const at::Tensor& grad, const at::Tensor& x,
                                                          const at::Tensor& weight, int64_t left, bool residual) {
  check_short_convolution_backward(grad, x, weight, left);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto composite = [&] { return short_convolution_backward_composite(grad, x, weight, left, residual); };
  if (x.numel() == 0) return composite();
  const Inputs in(x, weight, std::nullopt, left, residual);
  if (!cuda::short_convolution_fits(in.args)) return composite();
  const auto dy = grad.contiguous();
  const auto taps = weight.size(1), channels = weight.size(0);
  auto dx = at::empty(x.sizes(), x.options()), sums = at::empty({taps + 1, channels}, in.weight.options());
  const auto scratch = c10::cuda::CUDACachingAllocator::get()->allocate(
      cuda::short_convolution_backward_workspace(in.args, dy.const_data_ptr(), dx.const_data_ptr()));
  C10_CUDA_CHECK(cuda::short_convolution_backward(in.args, dy.const_data_ptr(), dx.mutable_data_ptr(),
                                                  sums.mutable_data_ptr<float>(), scratch.get(),
                                                  c10::cuda::getCurrentCUDAStream()));
  auto dweight = at::empty(weight.sizes(), weight.options().memory_format(at::MemoryFormat::Contiguous));
  dweight.copy_(sums.narrow(0, 0, taps).t());
  return {dx, dweight, sums.select(0, taps).to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true)};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("short_convolution", short_convolution_cuda);
  m.impl("_short_convolution_backward", short_convolution_backward_cuda);
}

}  // namespace contextpool
