// A branch joins the residual stream, and the layer norm of the sum, in one pass:
//
//   sum = x + branch,   normed = (sum - mean) / sqrt(variance + eps) * weight + bias
//
// over the last dimension. x and branch have one shape; the sum has the wider of their types (one of them has it), as
// x + branch would. Statistics are computed in float32 (float64 for float64). The gradient of x, to which that of the
// sum itself is added, is one pass too; those of weight and bias are summed in a fixed order, so that every run gives
// the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "contextpool/export.h"

namespace contextpool {

struct AddLayerNorm {
  at::Tensor sum, normed;
};

// x, branch [..., D], weight and bias [D]. type: of normed, the sum's unless given: bfloat16 under autocast, where a
// matrix product follows, spares the cast.
CONTEXTPOOL_API AddLayerNorm add_layer_norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                                            const at::Tensor& bias, double eps = 1e-5,
                                            std::optional<at::ScalarType> type = std::nullopt);

}  // namespace contextpool
