// The cases of pool2d as tensors, on every device this build has the operator for.
#pragma once

#include <contextpool/ops/pool2d.h>

#include "../kernels/pool2d_cases.h"
#include "pool1d_cases.h"

namespace contextpool::testing {

constexpr auto kLast = at::MemoryFormat::ChannelsLast;
constexpr auto kFirst = at::MemoryFormat::Contiguous;

inline Outputs run2d(const Inputs& in, at::IntArrayRef stride, std::string_view algorithm = "auto") {
  const auto leaf = [](const at::Tensor& t) { return t.detach().set_requires_grad(true); };
  const auto x = leaf(in.x), log_weight = leaf(in.log_weight), sigma = leaf(in.sigma);
  const auto y = pool2d(x, log_weight, sigma, stride, algorithm);
  y.backward(in.dy);
  return {y.detach(), x.grad(), log_weight.grad(), sigma.grad()};
}

inline Inputs tensors_of(const Problem2d& p, at::DeviceType device) {
  const auto& c = p.spec;
  const auto fine = scalar(weight_type(c.type));
  const auto features = [&](const std::vector<double>& v, std::int64_t height, std::int64_t width) {
    const auto last = tensor_of(v, {c.batch, height, width, c.channels}, scalar(c.type), device).permute({0, 3, 1, 2});
    return last.contiguous(c.channels_last ? kLast : kFirst);
  };
  return {features(p.x, c.height, c.width), tensor_of(p.log_weight, {c.batch, c.height, c.width}, fine, device),
          tensor_of(p.sigma, {c.batch, c.out_height(), c.out_width()}, fine, device),
          features(p.dy, c.out_height(), c.out_width())};
}

// Features with their channels last.
inline Result map_values_of(const Outputs& out) {
  const auto last = [](const at::Tensor& t) { return values_of(t.permute({0, 2, 3, 1})); };
  return {last(out.y), last(out.dx), values_of(out.dlog_weight), values_of(out.dsigma)};
}

}  // namespace contextpool::testing
