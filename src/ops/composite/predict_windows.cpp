// predict_windows by PyTorch's operators, which autocast must not take to half types: they are called with its key
// still there.
#include "ops/predict_windows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdlib>
#include <vector>

namespace contextpool {
namespace {

// rows [B, N, ...]: those `by` tokens later, 0 where there are none.
at::Tensor later(const at::Tensor& rows, int64_t by) {
  if (std::abs(by) >= rows.size(1)) return at::zeros_like(rows);
  return by == 0 ? rows : at::constant_pad_nd(rows, {0, 0, -by, by});
}

// [B, N, H], before GELU.
at::Tensor inner(const at::Tensor& product, const at::Tensor& bias, int64_t taps, int64_t left) {
  const auto type = windows_type(product);
  const auto hidden = bias.size(0);
  auto sum = later(product.narrow(2, 0, hidden).to(type), -left) + bias.to(type);
  for (int64_t k = 1; k < taps; ++k) sum = sum + later(product.narrow(2, k * hidden, hidden).to(type), k - left);
  return sum;
}

// The learnt and the bounded part of log sigma's logit, [B, sizes, N]; `bounded` is tanh(u / R).
struct Logit {
  Logit(const at::Tensor& u, const at::Tensor& out_bias, const SizeMap& map) {
    const auto learnt = out_bias.narrow(0, out_bias.size(0) - u.size(1), u.size(1)).to(u.scalar_type()).unsqueeze(1);
    if (map.size_range > 0) bounded = at::tanh(u / map.size_range);
    share = at::sigmoid((map.size_range > 0 ? learnt + map.size_range * bounded : learnt + u) + map.shift);
  }
  at::Tensor bounded, share;
};

}  // namespace

at::ScalarType windows_type(const at::Tensor& product) {
  return product.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

PredictedWindows predict_windows_composite(const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight,
                                           const at::Tensor& out_bias, int64_t left, int64_t sizes,
                                           const SizeMap& map) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto type = windows_type(product);
  const auto taps = weight.size(2), weights = weight.size(0) - sizes;
  const auto h = at::gelu(inner(product, bias, taps, left));
  const auto w = weight.to(type);
  auto u = later(at::matmul(h, w.select(2, 0).t()), -left);
  for (int64_t k = 1; k < taps; ++k) u = u + later(at::matmul(h, w.select(2, k).t()), k - left);
  u = u.transpose(1, 2);
  const auto of_sizes = u.narrow(1, weights, sizes).contiguous();
  const Logit logit(of_sizes, out_bias, map);
  return {(u.narrow(1, 0, weights) + out_bias.narrow(0, 0, weights).to(type).unsqueeze(1)).contiguous(),
          logit.share * map.span + map.least, of_sizes};
}

PredictWindowsGradients predict_windows_backward_composite(const at::Tensor& grad_log_weight,
                                                           const at::Tensor& grad_sigma, const at::Tensor& product,
                                                           const at::Tensor& bias, const at::Tensor& weight,
                                                           const at::Tensor& out_bias, const at::Tensor& u,
                                                           int64_t left, const SizeMap& map) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto type = windows_type(product);
  const auto taps = weight.size(2);
  const Logit logit(u, out_bias, map);
  const auto dlogit = grad_sigma.to(type) * logit.share * (1 - logit.share) * map.span;
  const auto du = map.size_range > 0 ? dlogit * (1 - logit.bounded * logit.bounded) : dlogit;
  const auto dl = grad_log_weight.to(type);
  const auto g = at::cat(std::vector{dl, du}, 1).transpose(1, 2);  // [B, N, C]

  const auto z = inner(product, bias, taps, left), h = at::gelu(z);
  const auto w = weight.to(type);
  auto dh = at::matmul(later(g, left), w.select(2, 0));
  for (int64_t k = 1; k < taps; ++k) dh = dh + at::matmul(later(g, left - k), w.select(2, k));
  const auto dz = at::gelu_backward(dh, z);
  std::vector<at::Tensor> blocks, of_taps;
  for (int64_t k = 0; k < taps; ++k) {
    blocks.push_back(later(dz, left - k));
    of_taps.push_back(at::matmul(g.flatten(0, 1).t(), later(h, k - left).flatten(0, 1)));
  }
  return {at::cat(blocks, 2).to(product.scalar_type()), dz.flatten(0, 1).sum(0).to(bias.scalar_type()),
          at::stack(of_taps, 2).to(weight.scalar_type()),
          at::cat(std::vector{dl, dlogit}, 1).transpose(1, 2).flatten(0, 1).sum(0).to(out_bias.scalar_type())};
}

PredictedWindows predict_windows_by_operators(const at::Tensor& product, const at::Tensor& bias,
                                              const at::Tensor& weight, const at::Tensor& out_bias, int64_t left,
                                              int64_t sizes, double size_range, double shift, double least,
                                              double span) {
  check_predict_windows(product, bias, weight, out_bias, left, sizes);
  return predict_windows_composite(product, bias, weight, out_bias, left, sizes, {size_range, shift, least, span});
}

PredictWindowsGradients predict_windows_backward_by_operators(const at::Tensor& grad_log_weight,
                                                              const at::Tensor& grad_sigma, const at::Tensor& product,
                                                              const at::Tensor& bias, const at::Tensor& weight,
                                                              const at::Tensor& out_bias, const at::Tensor& u,
                                                              int64_t left, double size_range, double shift,
                                                              double least, double span) {
  check_predict_windows_backward(grad_log_weight, grad_sigma, product, bias, weight, out_bias, u, left);
  return predict_windows_backward_composite(grad_log_weight, grad_sigma, product, bias, weight, out_bias, u, left,
                                            {size_range, shift, least, span});
}

}  // namespace contextpool
