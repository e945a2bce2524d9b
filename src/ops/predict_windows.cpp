// contextpool::predict_windows: the schema, the checks, and the C++ function.
#include "predict_windows.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "checks.h"

namespace contextpool {

constexpr std::string_view kOp = "contextpool::predict_windows";

void check_predict_windows(const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight,
                           const at::Tensor& out_bias, int64_t left, int64_t sizes) {
  const std::pair<const char*, const at::Tensor*> tensors[] = {
      {"product", &product}, {"bias", &bias}, {"weight", &weight}, {"out_bias", &out_bias}};
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK(tensor->defined(), kOp, ": ", name, " is missing");
    TORCH_CHECK(is_feature_type(tensor->scalar_type()), kOp, ": ", name,
                " must be float64, float32, bfloat16 or float16, but is ", tensor->scalar_type());
    TORCH_CHECK(tensor->device() == product.device(), kOp, ": all tensors must be on one device, but product is on ",
                product.device(), " and ", name, " on ", tensor->device());
  }
  TORCH_CHECK(product.dim() == 3 && bias.dim() == 1 && weight.dim() == 3 && out_bias.dim() == 1, kOp,
              ": expected product [batch, tokens, taps x hidden], bias [hidden], weight [channels, hidden, taps] and "
              "out_bias [channels], but they are ",
              shape(product), ", ", shape(bias), ", ", shape(weight), " and ", shape(out_bias));
  const auto hidden = bias.sym_size(0), taps = weight.sym_size(2), channels = out_bias.sym_size(0);
  TORCH_SYM_CHECK(weight.sym_size(1).sym_eq(hidden), kOp, ": bias has ", size(bias, 0), " hidden features but weight ",
                  size(weight, 1));
  TORCH_SYM_CHECK(weight.sym_size(0).sym_eq(channels), kOp, ": out_bias has ", size(out_bias, 0),
                  " channels but weight ", size(weight, 0));
  TORCH_SYM_CHECK(product.sym_size(2).sym_eq(hidden * taps), kOp, ": product has ", size(product, 2),
                  " features, but expected taps x hidden of weight, which is ", shape(weight));
  TORCH_SYM_CHECK(taps.sym_gt(left), kOp, ": left is ", std::to_string(left), ", expected 0 to taps - 1 of weight, ",
                  "which is ", shape(weight));
  TORCH_CHECK(left >= 0, kOp, ": left is ", std::to_string(left), ", expected at least 0");
  TORCH_SYM_CHECK(channels.sym_ge(sizes), kOp, ": sizes is ", std::to_string(sizes), ", but there are only ",
                  size(out_bias, 0), " channels");
  TORCH_CHECK(sizes >= 0, kOp, ": sizes is ", std::to_string(sizes), ", expected at least 0");
}

void check_predict_windows_backward(const at::Tensor& grad_log_weight, const at::Tensor& grad_sigma,
                                    const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight,
                                    const at::Tensor& out_bias, const at::Tensor& u, int64_t left) {
  TORCH_CHECK(u.defined() && u.dim() == 3, kOp, ": u must be [batch, sizes, tokens], but is ", shape(u));
  TORCH_CHECK(u.scalar_type() == windows_type(product), kOp, ": u must be ", windows_type(product), ", but is ",
              u.scalar_type());
  check_predict_windows(product, bias, weight, out_bias, left, 0);
  const auto batch = product.sym_size(0), tokens = product.sym_size(1), sizes = u.sym_size(1);
  TORCH_SYM_CHECK(u.sym_size(0).sym_eq(batch).sym_and(u.sym_size(2).sym_eq(tokens)), kOp, ": u is ", shape(u),
                  " but product ", shape(product));
  check_grad(kOp, grad_log_weight, u, std::array{batch, out_bias.sym_size(0) - sizes, tokens});
  check_grad(kOp, grad_sigma, u, u.sym_sizes());
}

PredictedWindows predict_windows_call(const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight,
                                      const at::Tensor& out_bias, int64_t left, int64_t sizes, const SizeMap& map) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("contextpool::predict_windows", "")
          .typed<PredictedWindows(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t,
                                  int64_t, double, double, double, double)>();
  return op.call(product, bias, weight, out_bias, left, sizes, map.size_range, map.shift, map.least, map.span);
}

std::tuple<at::Tensor, at::Tensor> predict_windows(const at::Tensor& product, const at::Tensor& bias,
                                                   const at::Tensor& weight, const at::Tensor& out_bias, int64_t left,
                                                   int64_t sizes, const SizeMap& map) {
  auto [log_weight, sigma, u] = predict_windows_call(product, bias, weight, out_bias, left, sizes, map);
  return {std::move(log_weight), std::move(sigma)};
}

PredictWindowsGradients predict_windows_backward(const at::Tensor& grad_log_weight, const at::Tensor& grad_sigma,
                                                 const at::Tensor& product, const at::Tensor& bias,
                                                 const at::Tensor& weight, const at::Tensor& out_bias,
                                                 const at::Tensor& u, int64_t left, const SizeMap& map) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("contextpool::_predict_windows_backward", "")
          .typed<PredictWindowsGradients(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                         const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, double,
                                         double, double, double)>();
  return op.call(grad_log_weight, grad_sigma, product, bias, weight, out_bias, u, left, map.size_range, map.shift,
                 map.least, map.span);
}

TORCH_LIBRARY_FRAGMENT(contextpool, m) {
  m.def(
      "predict_windows(Tensor product, Tensor bias, Tensor weight, Tensor out_bias, int left, int sizes, "
      "float size_range, float shift, float least, float span) -> (Tensor, Tensor, Tensor)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "_predict_windows_backward(Tensor grad_log_weight, Tensor grad_sigma, Tensor product, Tensor bias, "
      "Tensor weight, Tensor out_bias, Tensor u, int left, float size_range, float shift, float least, float span) "
      "-> (Tensor, Tensor, Tensor, Tensor)",
      {at::Tag::pt2_compliant_tag});
}

}  // namespace contextpool
