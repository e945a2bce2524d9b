// pool2d on CPU tensors: lays the inputs out as the kernel wants them and hands over plain pointers.
#include "kernels/cpu/pool2d.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/cpu/parallel.h"
#include "ops/inputs.h"
#include "ops/pool2d.h"

namespace contextpool {
namespace {

at::Tensor pool2d_cpu(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                      at::IntArrayRef stride, std::string_view algorithm) {
  check_pool2d(x, log_weight, sigma, stride, algorithm);
  auto y = at::empty(C10_AS_INTARRAYREF_SLOW(pool2d_result_sizes(x, sigma)), x.options(), x.suggest_memory_format());
  if (y.numel() == 0) return y;
  const Pool2dInputs in(x, log_weight, sigma, stride, algorithm);
  cpu::pool2d(in.args, y.mutable_data_ptr(), torch_threads());
  return y;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool2d_backward_cpu(const at::Tensor& grad, const at::Tensor& x,
                                                                   const at::Tensor& log_weight,
                                                                   const at::Tensor& sigma, at::IntArrayRef stride,
                                                                   std::string_view algorithm) {
  check_pool2d_backward(grad, x, log_weight, sigma, stride, algorithm);
  auto dx = at::empty(x.sizes(), x.options(), x.suggest_memory_format());
  auto dlog_weight = at::empty(log_weight.sizes(), log_weight.options());
  auto dsigma = at::empty(sigma.sizes(), sigma.options());
  if (grad.numel() == 0) {
    dx.zero_();
    dlog_weight.zero_();
    dsigma.zero_();
    return {dx, dlog_weight, dsigma};
  }
  const Pool2dInputs in(x, log_weight, sigma, stride, algorithm);
  const auto dy = grad.contiguous(in.format);
  cpu::pool2d_backward(in.args, dy.const_data_ptr(), dx.mutable_data_ptr(), dlog_weight.mutable_data_ptr(),
                       dsigma.mutable_data_ptr(), torch_threads());
  return {dx, dlog_weight, dsigma};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CPU, m) {
  m.impl("pool2d", pool2d_cpu);
  m.impl("_pool2d_backward", pool2d_backward_cpu);
}

}  // namespace contextpool
