// pool2d on CUDA tensors: lays the inputs out as the kernels want them, takes scratch memory from PyTorch's allocator
// and hands over plain pointers and the current stream. Nothing waits for the device.
#include "kernels/cuda/pool2d/pool2d.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/checks.h"
#include "ops/inputs.h"
#include "ops/pool2d.h"

namespace contextpool {
namespace {

Pool2dInputs inputs_of(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                       at::IntArrayRef stride, std::string_view algorithm) {
  TORCH_CHECK(x.size(2) <= cuda::kMaxSide && x.size(3) <= cuda::kMaxSide,
              "contextpool::pool2d: maps on CUDA may have up to ", size(cuda::kMaxSide), " pixels a side, but x is ",
              shape(x));
  Pool2dInputs in(x, log_weight, sigma, stride, algorithm);
  in.args.stride_h = std::min(stride[0], x.size(2));
  in.args.stride_w = std::min(stride[1], x.size(3));
  TORCH_CHECK(cuda::pool2d_fits(in.args), "contextpool::pool2d: x of ", shape(x),
              " is more than one call on CUDA can take: split the batch");
  return in;
}

at::Tensor scratch_of(const Pool2dInputs& in, std::size_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, in.x.options().dtype(at::kByte));
}

at::Tensor pool2d_cuda(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                       at::IntArrayRef stride, std::string_view algorithm) {
  check_pool2d(x, log_weight, sigma, stride, algorithm);
  const c10::cuda::CUDAGuard guard(x.device());
  auto y = at::empty(C10_AS_INTARRAYREF_SLOW(pool2d_result_sizes(x, sigma)), x.options(), x.suggest_memory_format());
  if (y.numel() == 0) return y;
  const auto in = inputs_of(x, log_weight, sigma, stride, algorithm);
  const auto scratch = scratch_of(in, cuda::pool2d_workspace(in.args));
  C10_CUDA_CHECK(
      cuda::pool2d(in.args, y.mutable_data_ptr(), scratch.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return y;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool2d_backward_cuda(const at::Tensor& grad, const at::Tensor& x,
                                                                    const at::Tensor& log_weight,
                                                                    const at::Tensor& sigma, at::IntArrayRef stride,
                                                                    std::string_view algorithm) {
  check_pool2d_backward(grad, x, log_weight, sigma, stride, algorithm);
  const c10::cuda::CUDAGuard guard(x.device());
  auto dx = at::empty(x.sizes(), x.options(), x.suggest_memory_format());
  auto dlog_weight = at::empty(log_weight.sizes(), log_weight.options());
  auto dsigma = at::empty(sigma.sizes(), sigma.options());
  if (grad.numel() == 0) {
    dx.zero_();
    dlog_weight.zero_();
    dsigma.zero_();
    return {dx, dlog_weight, dsigma};
  }
  const auto in = inputs_of(x, log_weight, sigma, stride, algorithm);
  const auto dy = grad.contiguous(in.format);
  const auto scratch = scratch_of(in, cuda::pool2d_backward_workspace(in.args));
  C10_CUDA_CHECK(cuda::pool2d_backward(in.args, dy.const_data_ptr(), dx.mutable_data_ptr(),
                                       dlog_weight.mutable_data_ptr(), dsigma.mutable_data_ptr(),
                                       scratch.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return {dx, dlog_weight, dsigma};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("pool2d", pool2d_cuda);
  m.impl("_pool2d_backward", pool2d_backward_cuda);
}

}  // namespace contextpool
