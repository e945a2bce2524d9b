// Under autocast the predicted log weights and sizes arrive in half precision; the operator takes them in float32
// (float64 beside float64 features). The features keep the dtype they come in.
#include "contextpool/ops/pool2d.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace contextpool {
namespace {

template <c10::DispatchKey key, c10::DeviceType device>
at::Tensor pool2d_autocast(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                           at::IntArrayRef stride, std::string_view algorithm) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return pool2d(x, at::autocast::cached_cast(type, log_weight, device), at::autocast::cached_cast(type, sigma, device),
                stride, algorithm);
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, AutocastCPU, m) {
  m.impl("pool2d", pool2d_autocast<c10::DispatchKey::AutocastCPU, at::kCPU>);
}

TORCH_LIBRARY_IMPL(contextpool, AutocastCUDA, m) {
  m.impl("pool2d", pool2d_autocast<c10::DispatchKey::AutocastCUDA, at::kCUDA>);
}

}  // namespace contextpool
