// dynamic_convolution on CPU tensors: lays the inputs out as the kernel wants them and hands over plain pointers.
#include "kernels/cpu/dynamic_convolution.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "ops/cpu/parallel.h"
#include "ops/dynamic_convolution.h"
#include "ops/storage.h"

namespace contextpool {
namespace {

at::ScalarType sum_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// The inputs in kernel layout; keeps alive the copies that had to be made.
struct Inputs {
  Inputs(const at::Tensor& of_x, const at::Tensor& of_inner, const at::Tensor& of_up, const at::Tensor& of_weight,
         int64_t left, bool residual)
      : x(of_x.dim() == 3 ? of_x : of_x.reshape({-1, of_x.size(-2), of_x.size(-1)})),
        inner(of_inner.to(sum_type(of_x)).contiguous()),
        up(of_up.to(sum_type(of_x)).contiguous()),
        weight(of_weight.to(sum_type(of_x)).contiguous()) {
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
    args.inner = inner.const_data_ptr();
    args.up = up.const_data_ptr();
    args.weight = weight.const_data_ptr();
  }

  at::Tensor x, inner, up, weight;
  cpu::DynamicConvolution args;
};

at::Tensor dynamic_convolution_cpu(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& up,
                                   const at::Tensor& weight, int64_t left, bool residual) {
  check_dynamic_convolution(x, inner, up, weight, left);
  auto y = at::empty_symint(dynamic_convolution_sizes(x, inner), x.options());
  if (y.numel() == 0) return y;
  const Inputs in(x, inner, up, weight, left, residual);
  cpu::dynamic_convolution(in.args, y.mutable_data_ptr(), torch_threads());
  return y;
}

DynamicConvolutionGradients dynamic_convolution_backward_cpu(const at::Tensor& grad, const at::Tensor& x,
                                                             const at::Tensor& inner, const at::Tensor& up,
                                                             const at::Tensor& weight, int64_t left, bool residual) {
  check_dynamic_convolution_backward(grad, x, inner, up, weight, left);
  if (grad.numel() == 0) {
    const auto zeros = [](const at::Tensor& t) { return at::zeros_like(t, at::MemoryFormat::Contiguous); };
    return {zeros(x), zeros(inner), zeros(up), zeros(weight)};
  }
  const Inputs in(x, inner, up, weight, left, residual);
  const auto dy = grad.contiguous();
  const auto empty_contiguous = [](const at::Tensor& t) { return at::empty(t.sizes(), t.options()); };
  auto dx = at::empty(x.sizes(), x.options());
  auto dinner = empty_contiguous(in.inner), dup = empty_contiguous(in.up), dweight = empty_contiguous(in.weight);
  cpu::dynamic_convolution_backward(
      in.args, dy.const_data_ptr(),
      {dx.mutable_data_ptr(), dinner.mutable_data_ptr(), dup.mutable_data_ptr(), dweight.mutable_data_ptr()},
      torch_threads());
  return {dx, dinner.to(inner.scalar_type()), dup.to(up.scalar_type()), dweight.to(weight.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CPU, m) {
  m.impl("dynamic_convolution", dynamic_convolution_cpu);
  m.impl("_dynamic_convolution_backward", dynamic_convolution_backward_cpu);
}

}  // namespace contextpool
