// The cross-entropy of logits with the right class of each row:
//
//   loss_i = log sum_j exp(logits_ij) - logits_i,target_i
//
// in float32 (float64 for float64), read from logits of any floating-point type without a copy of them in a wider one.
// The gradient is written in the type of the logits, in one pass.
#pragma once

#include <ATen/core/Tensor.h>

#include "contextpool/export.h"

namespace contextpool {

// logits [rows, classes], target [rows] of int64: 0 to classes - 1, or `ignored`, whose loss and gradient are 0.
// Another target is an error on the CPU; on CUDA, where to ask would be to wait for the device, its loss and gradient
// are NaN. Gives the losses [rows].
CONTEXTPOOL_API at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t ignored = -100);

}  // namespace contextpool
