// short_convolution by PyTorch's operators, a sum of shifted products: on CUDA for what the kernels do not have.
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "ops/short_convolution.h"

namespace contextpool {
namespace {

at::ScalarType sum_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// Tokens [begin, end) of y that tap k reads, and where in x from: both within the row.
struct Reach {
  Reach(int64_t k, int64_t left, int64_t tokens)
      : from(k - left),
        begin(std::clamp<int64_t>(-from, 0, tokens)),
        end(std::clamp<int64_t>(tokens - from, 0, tokens)) {
    if (end < begin) end = begin;
  }
  at::Tensor of_x(const at::Tensor& x) const { return x.slice(-2, begin + from, end + from); }
  at::Tensor of_y(const at::Tensor& y) const { return y.slice(-2, begin, end); }
  int64_t from, begin, end;
};

}  // namespace

at::Tensor short_convolution_composite(const at::Tensor& x, const at::Tensor& weight,
                                       const std::optional<at::Tensor>& bias, int64_t left, bool residual) {
  const auto type = sum_type(x);
  const auto x_in_sum_type = x.to(type), w = weight.to(type);
  auto y = at::zeros(x.sizes(), x.options().dtype(type));
  for (int64_t k = 0; k < weight.size(1); ++k) {
    const Reach reach(k, left, x.size(-2));
    if (reach.begin < reach.end) reach.of_y(y).addcmul_(reach.of_x(x_in_sum_type), w.select(1, k));
  }
  if (bias && bias->defined()) y += bias->to(type);
  if (residual) y += x_in_sum_type;
  return y.to(x.scalar_type());
}

ShortConvolutionGradients short_convolution_backward_composite(const at::Tensor& grad, const at::Tensor& x,
                                                               const at::Tensor& weight, int64_t left, bool residual) {
  const auto type = sum_type(x);
  const auto dy = grad.to(type), x_in_sum_type = x.to(type);
  const auto to_channels = [&](const at::Tensor& t) { return t.reshape({-1, weight.size(0)}).sum(0); };
  std::vector<at::Tensor> dweight;
  for (int64_t k = 0; k < weight.size(1); ++k) {
    const Reach reach(k, left, x.size(-2));
    dweight.push_back(to_channels(reach.of_y(dy).mul(reach.of_x(x_in_sum_type))));
  }
  return {short_convolution_composite(grad, weight.flip(1), std::nullopt, weight.size(1) - 1 - left, residual)
              .to(x.scalar_type())
              .contiguous(),
          at::stack(dweight, 1).to(weight.scalar_type()), to_channels(dy).to(weight.scalar_type())};
}

}  // namespace contextpool
