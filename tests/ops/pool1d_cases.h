// The cases of pool1d as tensors, on every device this build has the operator for.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <contextpool/ops/pool1d.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "../kernels/pool1d_cases.h"
#include "../kernels/pool1d_check.h"

namespace contextpool::testing {

// CPU, and CUDA where there is a card and the operator was built for it.
inline std::vector<at::DeviceType> devices() {
  std::vector<at::DeviceType> list = {at::kCPU};
  const auto op = c10::Dispatcher::singleton().findSchema({"contextpool::pool1d", ""});
  if (at::hasCUDA() && op && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) list.push_back(at::kCUDA);
  return list;
}

inline std::string name(at::DeviceType device) { return device == at::kCPU ? "cpu" : "cuda"; }

inline at::ScalarType scalar(Type type) {
  return std::array{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}[static_cast<std::size_t>(type)];
}

struct Inputs {
  at::Tensor x, log_weight, sigma, dy;
};

struct Outputs {
  at::Tensor y, dx, dlog_weight, dsigma;
  std::vector<at::Tensor> list() const { return {y, dx, dlog_weight, dsigma}; }
};

inline at::Tensor tensor_of(const std::vector<double>& values, at::IntArrayRef sizes, at::ScalarType type,
                            at::DeviceType device) {
  auto copy = at::empty(sizes, at::kDouble);
  std::copy(values.begin(), values.end(), copy.mutable_data_ptr<double>());
  return copy.to(at::TensorOptions(device).dtype(type));
}

inline std::vector<double> values_of(const at::Tensor& t) {
  const auto flat = t.detach().to(at::TensorOptions(at::kCPU).dtype(at::kDouble)).contiguous();
  const auto* data = flat.const_data_ptr<double>();
  return {data, data + flat.numel()};
}

// The same values in another layout: transposed = the last dimension (of x: tokens) is not the one that is contiguous;
// sliced = every other element of a larger tensor that holds NaN elsewhere.
inline at::Tensor laid_out(const at::Tensor& t, Layout layout) {
  if (layout == Layout::contiguous || t.dim() == 0) return t;
  if (layout == Layout::transposed) {
    const auto last = t.dim() - 1, other = t.dim() == 1 ? 0 : t.dim() - 2;
    return t.transpose(last, other).contiguous().transpose(last, other);
  }
  std::vector<int64_t> sizes(t.sizes().begin(), t.sizes().end());
  for (auto& size : sizes) size = 2 * size + 1;
  auto view = at::full(sizes, std::numeric_limits<double>::quiet_NaN(), t.options());
  for (int64_t d = 0; d < t.dim(); ++d) view = view.slice(d, 1, 2 * t.size(d) + 1, 2);
  view.copy_(t);
  return view;
}

inline Inputs tensors_of(const Problem& p, at::DeviceType device) {
  const auto& c = p.spec;
  const auto fine = scalar(weight_type(c.type));
  return {laid_out(tensor_of(p.x, {c.batch, c.tokens, c.channels}, scalar(c.type), device), c.layout),
          laid_out(tensor_of(p.log_weight, {c.batch, c.tokens}, fine, device), c.layout),
          laid_out(tensor_of(p.sigma, {c.batch, c.targets}, fine, device), c.layout),
          laid_out(tensor_of(p.dy, {c.batch, c.targets, c.channels}, scalar(c.type), device), c.layout)};
}

// Values and, through autograd, gradients.
inline Outputs run(const Inputs& in, bool causal, std::string_view algorithm) {
  const auto leaf = [](const at::Tensor& t) { return t.detach().set_requires_grad(true); };
  const auto x = leaf(in.x), log_weight = leaf(in.log_weight), sigma = leaf(in.sigma);
  const auto y = pool1d(x, log_weight, sigma, causal, algorithm);
  y.backward(in.dy);
  return {y.detach(), x.grad(), log_weight.grad(), sigma.grad()};
}

inline Outputs run(const Inputs& in, const Case& c) { return run(in, c.causal, name(c.algorithm)); }

inline Result values_of(const Outputs& out) {
  return {values_of(out.y), values_of(out.dx), values_of(out.dlog_weight), values_of(out.dsigma)};
}

// Equal in every element, NaN only where the other has NaN.
inline bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         a.eq(b).logical_or(a.isnan().logical_and(b.isnan())).all().item<bool>();
}

inline void expect_same(const Outputs& a, const Outputs& b) {
  EXPECT_TRUE(same(a.y, b.y)) << "y";
  EXPECT_TRUE(same(a.dx, b.dx)) << "dx";
  EXPECT_TRUE(same(a.dlog_weight, b.dlog_weight)) << "dlog_weight";
  EXPECT_TRUE(same(a.dsigma, b.dsigma)) << "dsigma";
}

// What most tests vary: device, algorithm, direction, dtype. `spec` gives a case with those filled in.
using Setting = std::tuple<at::DeviceType, Algorithm, bool, Type>;

inline Case spec(const Setting& setting, std::int64_t batch, std::int64_t tokens, std::int64_t channels) {
  Case c;
  std::tie(std::ignore, c.algorithm, c.causal, c.type) = setting;
  c.rounds_weights = std::get<0>(setting) == at::kCUDA;
  c.batch = batch;
  c.tokens = c.targets = tokens;
  c.channels = channels;
  return c;
}

// A test for each device and algorithm, whose body runs over directions and dtypes. (A test of its own for each of
// those would cost more to start than to run.)
class EachSetting : public ::testing::TestWithParam<std::tuple<at::DeviceType, Algorithm>> {
 protected:
  template <class Body>
  void each(const Body& body) {
    for (const bool causal : {false, true}) {
      for (const auto type : types) {
        SCOPED_TRACE(std::string(causal ? "causal, " : "both ways, ") + name(type));
        setting = std::tuple_cat(GetParam(), std::tuple(causal, type));
        body();
      }
    }
  }

  at::DeviceType device() const { return std::get<0>(setting); }

  // Whether it is one of the linear-time schemes, which get longer rows than those that look at every pair.
  bool linear() const {
    return std::get<1>(setting) == Algorithm::automatic || std::get<1>(setting) == Algorithm::pyramid;
  }

  std::vector<Type> types = {kTypes.begin(), kTypes.end()};
  Setting setting;
};

inline std::string setting_name(const ::testing::TestParamInfo<EachSetting::ParamType>& info) {
  return name(std::get<0>(info.param)) + "_" + name(std::get<1>(info.param));
}

inline auto settings() { return ::testing::Combine(::testing::ValuesIn(devices()), ::testing::ValuesIn(kAlgorithms)); }

}  // namespace contextpool::testing
