// What autocast does to log weights and sizes, for every operator.
#pragma once

#include <ATen/core/Tensor.h>

namespace contextpool {

// In float32, or in float64 beside float64 features: from half types, and from float64, which at::autocast leaves
// alone. What is no floating-point tensor stays, to be refused with the operator's own words.
inline at::Tensor cast_beside(const at::Tensor& x, const at::Tensor& t) {
  if (!x.defined() || !t.defined() || !t.is_floating_point()) return t;
  return t.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace contextpool
