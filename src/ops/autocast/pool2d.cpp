// Under autocast the predicted log weights and sizes may arrive in half precision; the operator takes them in float32
// (float64 beside float64 features). The features keep the dtype they come in.
#include "contextpool/ops/pool2d.h"

#include <torch/library.h>

#include "cast.h"

namespace contextpool {
namespace {

template <c10::DispatchKey key>
at::Tensor pool2d_autocast(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                           at::IntArrayRef stride, std::string_view algorithm) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  return pool2d(x, cast_beside(x, log_weight), cast_beside(x, sigma), stride, algorithm);
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, AutocastCPU, m) { m.impl("pool2d", pool2d_autocast<c10::DispatchKey::AutocastCPU>); }

TORCH_LIBRARY_IMPL(contextpool, AutocastCUDA, m) { m.impl("pool2d", pool2d_autocast<c10::DispatchKey::AutocastCUDA>); }

}  // namespace contextpool
