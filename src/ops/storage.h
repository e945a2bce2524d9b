// The storage type of a tensor that check_types has let through, as the kernels name it.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/type.h"

namespace contextpool {

inline Type storage_type(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kDouble: return Type::f64;
    case at::kBFloat16: return Type::bf16;
    case at::kHalf: return Type::f16;
    default: return Type::f32;
  }
}

}  // namespace contextpool
