// y = gelu(x + bias), the exact GELU z (1 + erf(z / sqrt 2)) / 2, after a matrix product without a bias. Arithmetic is
// in float32 (float64 for float64), and x + bias is rounded nowhere in between. The gradient of the bias is summed in
// a fixed order, in the same pass as that of x.
#pragma once

#include <ATen/core/Tensor.h>

#include "contextpool/export.h"

namespace contextpool {

// x [..., D] of float64, float32, bfloat16 or float16, bias [D] of any of them; y is contiguous, in the type of x.
CONTEXTPOOL_API at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias);

}  // namespace contextpool
