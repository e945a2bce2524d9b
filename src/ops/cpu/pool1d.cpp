// pool1d on CPU tensors: lays the inputs out as the kernel wants them and hands over plain pointers.
#include "kernels/cpu/pool1d.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/cpu/parallel.h"
#include "ops/inputs.h"
#include "ops/pool1d.h"

namespace contextpool {
namespace {

// [batch, tokens, channels], or x itself where groups are side by side, with contiguous channels: a view where strides
// allow it, else a copy.
at::Tensor as_rows(const at::Tensor& x) {
  if (groups_side_by_side(x)) return x;
  auto rows = x.dim() == 3 ? x : x.reshape({-1, x.size(-2), x.size(-1)});
  return rows.stride(2) == 1 ? rows : rows.contiguous();
}

at::Tensor pool1d_cpu(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
                      std::string_view algorithm) {
  check_pool1d(x, log_weight, sigma, algorithm);
  auto y = empty_result(x, pool1d_result_sizes(x, sigma));
  if (y.numel() == 0) return y;
  const Pool1dInputs in(as_rows(x), log_weight, sigma, causal, algorithm);
  cpu::pool1d(in.args, y.mutable_data_ptr(), torch_threads());
  return y;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool1d_backward_cpu(const at::Tensor& grad, const at::Tensor& x,
                                                                   const at::Tensor& log_weight,
                                                                   const at::Tensor& sigma, bool causal,
                                                                   std::string_view algorithm,
                                                                   const std::optional<at::Tensor>& /*kept*/) {
  check_pool1d_backward(grad, x, log_weight, sigma, algorithm);
  auto dx = empty_result(x, x.sym_sizes());
  auto dlog_weight = at::empty(log_weight.sizes(), log_weight.options());
  auto dsigma = at::empty(sigma.sizes(), sigma.options());
  if (grad.numel() == 0) {
    dx.zero_();
    dlog_weight.zero_();
    dsigma.zero_();
    return {dx, dlog_weight, dsigma};
  }
  const Pool1dInputs in(as_rows(x), log_weight, sigma, causal, algorithm);
  const auto dy = laid_out_as_result(grad, x);
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
