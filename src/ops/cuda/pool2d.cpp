// pool2d on CUDA tensors: lays the inputs out as the kernels want them, takes scratch memory from PyTorch's allocator
// and hands over plain pointers and the current stream. Nothing waits for the device.
#include "kernels/cuda/pool2d/pool2d.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/algorithm.h"
#include "ops/checks.h"
#include "ops/pool2d.h"
#include "ops/storage.h"

namespace contextpool {
namespace {

// The inputs in kernel layout; keeps alive the copies that had to be made.
struct Inputs {
  Inputs(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, at::IntArrayRef stride,
         std::string_view algorithm)
      : format(x.suggest_memory_format()),
        x(x.contiguous(format)),
        log_weight(log_weight.contiguous()),
        sigma(sigma.contiguous()) {
    TORCH_CHECK(x.size(2) <= cuda::Pool2d::kMaxSide && x.size(3) <= cuda::Pool2d::kMaxSide,
                "contextpool::pool2d: maps on CUDA may have up to ", size(cuda::Pool2d::kMaxSide),
                " pixels a side, but x is ", shape(x));
    args.batch = x.size(0);
    args.channels = x.size(1);
    args.height = static_cast<int>(x.size(2));
    args.width = static_cast<int>(x.size(3));
    args.out_height = static_cast<int>(sigma.size(1));
    args.out_width = static_cast<int>(sigma.size(2));
    args.stride_h = static_cast<int>(std::min(stride[0], x.size(2)));
    args.stride_w = static_cast<int>(std::min(stride[1], x.size(3)));
    args.channels_last = format == at::MemoryFormat::ChannelsLast;
    args.algorithm = parse_map_algorithm("contextpool::pool2d", algorithm);
    args.type = storage_type(x);
    args.x = this->x.const_data_ptr();
    args.log_weight = this->log_weight.const_data_ptr();
    args.sigma = this->sigma.const_data_ptr();
    TORCH_CHECK(cuda::pool2d_fits(args), "contextpool::pool2d: x of ", shape(x),
                " is more than one call on CUDA can take: split the batch");
  }

  at::Tensor scratch(std::size_t bytes) const {
    return at::empty({static_cast<std::int64_t>(bytes)}, x.options().dtype(at::kByte));
  }

  at::MemoryFormat format;
  at::Tensor x, log_weight, sigma;
  cuda::Pool2d args;
};

at::Tensor pool2d_cuda(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                       at::IntArrayRef stride, std::string_view algorithm) {
  check_pool2d(x, log_weight, sigma, stride, algorithm);
  const c10::cuda::CUDAGuard guard(x.device());
  auto y = at::empty(C10_AS_INTARRAYREF_SLOW(pool2d_result_sizes(x, sigma)), x.options(), x.suggest_memory_format());
  if (y.numel() == 0) return y;
  const Inputs in(x, log_weight, sigma, stride, algorithm);
  const auto scratch = in.scratch(cuda::pool2d_workspace(in.args));
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
  const Inputs in(x, log_weight, sigma, stride, algorithm);
  const auto dy = grad.contiguous(in.format);
  const auto scratch = in.scratch(cuda::pool2d_backward_workspace(in.args));
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
