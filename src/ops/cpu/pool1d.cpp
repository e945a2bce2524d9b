// pool1d on CPU tensors: lays the inputs out as the kernel wants them and hands over plain pointers.
#include "kernels/cpu/pool1d.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/algorithm.h"
#include "ops/cpu/parallel.h"
#include "ops/pool1d.h"
#include "ops/storage.h"

namespace contextpool {
namespace {

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
    args.batch = this->x.size(0);
    args.tokens = this->x.size(1);
    args.targets = sigma.size(-1);
    args.channels = this->x.size(2);
    args.causal = causal;
    args.algorithm = parse_sequence_algorithm("contextpool::pool1d", algorithm);
    args.type = storage_type(x);
    args.x = this->x.const_data_ptr();
    args.x_batch_stride = this->x.stride(0);
    args.x_token_stride = this->x.stride(1);
    args.log_weight = this->log_weight.const_data_ptr();
    args.sigma = this->sigma.const_data_ptr();
  }

  at::Tensor x, log_weight, sigma;
  cpu::Pool1d args;
};

at::Tensor pool1d_cpu(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
                      std::string_view algorithm) {
  check_pool1d(x, log_weight, sigma, algorithm);
  auto y = at::empty(C10_AS_INTARRAYREF_SLOW(pool1d_result_sizes(x, sigma)), x.options());
  if (y.numel() == 0) return y;
  const Inputs in(x, log_weight, sigma, causal, algorithm);
  cpu::pool1d(in.args, y.mutable_data_ptr(), torch_threads());
  return y;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool1d_backward_cpu(const at::Tensor& grad, const at::Tensor& x,
                                                                   const at::Tensor& log_weight,
                                                                   const at::Tensor& sigma, bool causal,
                                                                   std::string_view algorithm,
                                                                   const std::optional<at::Tensor>& /*kept*/) {
  check_pool1d_backward(grad, x, log_weight, sigma, algorithm);
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
  cpu::pool1d_backward(in.args, dy.const_data_ptr(), dx.mutable_data_ptr(), dlog_weight.mutable_data_ptr(),
                       dsigma.mutable_data_ptr(), torch_threads());
  return {dx, dlog_weight, dsigma};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CPU, m) {
  m.impl("pool1d", pool1d_cpu);
  m.impl("_pool1d_backward", pool1d_backward_cpu);
}

}  // namespace contextpool
