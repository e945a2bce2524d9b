// pool2d on CPU tensors: lays the inputs out as the kernel wants them and hands over plain pointers.
#include "kernels/cpu/pool2d.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/algorithm.h"
#include "ops/cpu/parallel.h"
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
    args.batch = x.size(0);
    args.channels = x.size(1);
    args.height = x.size(2);
    args.width = x.size(3);
    args.out_height = sigma.size(1);
    args.out_width = sigma.size(2);
    args.stride_h = stride[0];
    args.stride_w = stride[1];
    args.channels_last = format == at::MemoryFormat::ChannelsLast;
    args.algorithm = parse_map_algorithm("contextpool::pool2d", algorithm);
    args.type = storage_type(x);
    args.x = this->x.const_data_ptr();
    args.log_weight = this->log_weight.const_data_ptr();
    args.sigma = this->sigma.const_data_ptr();
  }

  at::MemoryFormat format;
  at::Tensor x, log_weight, sigma;
  cpu::Pool2d args;
};

at::Tensor pool2d_cpu(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                      at::IntArrayRef stride, std::string_view algorithm) {
  check_pool2d(x, log_weight, sigma, stride, algorithm);
  auto y = at::empty(C10_AS_INTARRAYREF_SLOW(pool2d_result_sizes(x, sigma)), x.options(), x.suggest_memory_format());
  if (y.numel() == 0) return y;
  const Inputs in(x, log_weight, sigma, stride, algorithm);
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
  const Inputs in(x, log_weight, sigma, stride, algorithm);
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
