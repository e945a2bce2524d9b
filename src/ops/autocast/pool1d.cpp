// Under autocast the predicted log weights and sizes may arrive in half precision; the operator takes them in float32
// (float64 beside float64 features). The features keep the dtype they come in.
#include "contextpool/ops/pool1d.h"

#include <torch/library.h>

#include "cast.h"

namespace contextpool {
namespace {

template <c10::DispatchKey key>
at::Tensor pool1d_autocast(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
                           std::string_view algorithm) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  return pool1d(x, cast_beside(x, log_weight), cast_beside(x, sigma), causal, algorithm);
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, AutocastCPU, m) { m.impl("pool1d", pool1d_autocast<c10::DispatchKey::AutocastCPU>); }

TORCH_LIBRARY_IMPL(contextpool, AutocastCUDA, m) { m.impl("pool1d", pool1d_autocast<c10::DispatchKey::AutocastCUDA>); }

}  // namespace contextpool
