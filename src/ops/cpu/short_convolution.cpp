// short_convolution on CPU tensors: lays the inputs out as the kernel wants them and hands over plain pointers.
#include "kernels/cpu/short_convolution.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "ops/cpu/parallel.h"
#include "ops/short_convolution.h"
#include "ops/storage.h"

namespace contextpool {
namespace {

at::ScalarType sum_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// The inputs in kernel layout; keeps alive the copies that had to be made.
struct Inputs {
  Inputs(const at::Tensor& of_x, const at::Tensor& of_weight, const std::optional<at::Tensor>& of_bias, int64_t left,
         bool residual)
      : x(of_x.dim() == 3 ? of_x : of_x.reshape({-1, of_x.size(-2), of_x.size(-1)})),
        weight(of_weight.to(sum_type(of_x)).t().contiguous()) {
    if (x.stride(2) != 1) x = x.contiguous();
    if (of_bias && of_bias->defined()) bias = of_bias->to(sum_type(of_x)).contiguous();
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
    args.weight = weight.const_data_ptr();
    if (bias.defined()) args.bias = bias.const_data_ptr();
  }

  at::Tensor x, weight, bias;
  cpu::ShortConvolution args;
};

at::Tensor short_convolution_cpu(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                 int64_t left, bool residual) {
  check_short_convolution(x, weight, bias, left);
  auto y = at::empty(x.sizes(), x.options());
  if (y.numel() == 0) return y;
  const Inputs in(x, weight, bias, left, residual);
  cpu::short_convolution(in.args, y.mutable_data_ptr(), torch_threads());
  return y;
}

ShortConvolutionGradients short_convolution_backward_cpu(const at::Tensor& grad, const at::Tensor& x,
                                                         const at::Tensor& weight, int64_t left, bool residual) {
  check_short_convolution_backward(grad, x, weight, left);
  auto dx = at::empty(x.sizes(), x.options());
  if (dx.numel() == 0) {
    return {dx, at::zeros_like(weight, at::MemoryFormat::Contiguous), weight.new_zeros({weight.size(0)})};
  }
  const Inputs in(x, weight, std::nullopt, left, residual);
  const auto dy = grad.contiguous();
  const auto in_sum_type = weight.options().dtype(sum_type(x));
  auto dweight = at::empty({weight.size(1), weight.size(0)}, in_sum_type),
       dbias = at::empty({weight.size(0)}, in_sum_type);
  cpu::short_convolution_backward(in.args, dy.const_data_ptr(), dx.mutable_data_ptr(), dweight.mutable_data_ptr(),
                                  dbias.mutable_data_ptr(), torch_threads());
  return {dx, dweight.t().to(weight.scalar_type()).contiguous(), dbias.to(weight.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CPU, m) {
  m.impl("short_convolution", short_convolution_cpu);
  m.impl("_short_convolution_backward", short_convolution_backward_cpu);
}

}  // namespace contextpool
