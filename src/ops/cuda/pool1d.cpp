// pool1d on CUDA tensors: lays the inputs out as the kernels want them, takes scratch memory from PyTorch's allocator
// and hands over plain pointers and the current stream. Nothing waits for the device.
#include "kernels/cuda/pool1d.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/algorithm.h"
#include "ops/pool1d.h"

namespace contextpool {
namespace {

cuda::Type storage_type(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kDouble: return cuda::Type::f64;
    case at::kBFloat16: return cuda::Type::bf16;
    case at::kHalf: return cuda::Type::f16;
    default: return cuda::Type::f32;
  }
}

// [batch, tokens, channels] with contiguous channels: a view where strides allow it, else a copy.
at::Tensor as_rows(const at::Tensor& x) {
  auto rows = x.dim() == 3 ? x : x.reshape({-1, x.size(-2), x.size(-1)});
  return rows.stride(2) == 1 ? rows : rows.contiguous();
}

// The inputs in kernel layout; keeps alive the copies that had to be made.
struct Inputs {
  Inputs(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
         std::string_view algorithm)
      : x(as_rows(x)), log_weight(log_weight.contiguous()), sigma(sigma.contiguous()) {
    TORCH_CHECK(this->x.size(1) < (1 << 28), "contextpool::pool1d: sequences on CUDA may have up to 2^28 - 1 tokens, ",
                "but x is ", x.sizes());
    args.batch = this->x.size(0);
    args.tokens = this->x.size(1);
    args.targets = sigma.size(-1);
    args.channels = this->x.size(2);
    args.causal = causal;
    args.algorithm = parse_algorithm("contextpool::pool1d", algorithm);
    args.type = storage_type(x);
    args.x = this->x.const_data_ptr();
    args.x_batch_stride = this->x.stride(0);
    args.x_token_stride = this->x.stride(1);
    args.log_weight = this->log_weight.const_data_ptr();
    args.sigma = this->sigma.const_data_ptr();
  }

  at::Tensor scratch(std::size_t bytes) const {
    return at::empty({static_cast<std::int64_t>(bytes)}, x.options().dtype(at::kByte));
  }

  at::Tensor x, log_weight, sigma;
  cuda::Pool1d args;
};

at::Tensor pool1d_cuda(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
                       std::string_view algorithm) {
  check_pool1d(x, log_weight, sigma, algorithm);
  const c10::cuda::CUDAGuard guard(x.device());
  auto y = at::empty(C10_AS_INTARRAYREF_SLOW(pool1d_result_sizes(x, sigma)), x.options());
  if (y.numel() == 0) return y;
  const Inputs in(x, log_weight, sigma, causal, algorithm);
  const auto scratch = in.scratch(cuda::pool1d_workspace(in.args));
  C10_CUDA_CHECK(
      cuda::pool1d(in.args, y.mutable_data_ptr(), scratch.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return y;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool1d_backward_cuda(const at::Tensor& grad, const at::Tensor& x,
                                                                    const at::Tensor& log_weight,
                                                                    const at::Tensor& sigma, bool causal,
                                                                    std::string_view algorithm) {
  check_pool1d_backward(grad, x, log_weight, sigma, algorithm);
  const c10::cuda::CUDAGuard guard(x.device());
  auto dx = at::empty(x.sizes(), x.options());
  auto dlog_weight = at::empty(log_weight.sizes(), log_weight.options());
  auto dsigma = at::empty(sigma.sizes(), sigma.options());
  if (grad.numel() == 0) {
    dx.zero_();
    dlog_weight.zero_();
    dsigma.zero_();
    return {dx, dlog_weight, dsigma};
  }
  const Inputs in(x, log_weight, sigma, causal, algorithm);
  const auto dy = grad.contiguous();
  const auto scratch = in.scratch(cuda::pool1d_backward_workspace(in.args));
  C10_CUDA_CHECK(cuda::pool1d_backward(in.args, dy.const_data_ptr(), dx.mutable_data_ptr(),
                                       dlog_weight.mutable_data_ptr(), dsigma.mutable_data_ptr(),
                                       scratch.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return {dx, dlog_weight, dsigma};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("pool1d", pool1d_cuda);
  m.impl("_pool1d_backward", pool1d_backward_cuda);
}

}  // namespace contextpool
