// Shared by the registrations of rotary and rotary_qkv: the checks and the gradient's dispatcher call.
#pragma once

#include <ATen/core/Tensor.h>

namespace contextpool {

// What include/contextpool/ops/rotary.h asks of the inputs; throws with the operator, what was expected and what came.
void check_rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);
void check_rotary_qkv(const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin);
void check_rotary_qkv_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& cos,
                               const at::Tensor& sin);

// dq, dk, dv [B, N, H, F] -> dqkv [B, N, 3, H, F], contiguous.
at::Tensor rotary_qkv_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& cos,
                               const at::Tensor& sin);

}  // namespace contextpool
