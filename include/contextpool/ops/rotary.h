// Rotary positions: pair (2k, 2k+1) of a token's features is turned by the angle whose cosine and sine are given,
//
//   y_2k = x_2k cos - x_2k+1 sin,   y_2k+1 = x_2k sin + x_2k+1 cos.
//
// cos and sin are [N, F / 2], or [B, N, F / 2] where rows differ: float32, or float64 beside float64 features; they
// are constants, to which no gradient flows. Features are float64, float32, bfloat16 or float16 of any strides; half
// types are turned in float32. The gradient is the turn by the negative angle.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "contextpool/export.h"

namespace contextpool {

// x [B, N, ..., F] -> y of the same shape, contiguous. back: by the negative angle.
CONTEXTPOOL_API at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back = false);

// The joined projections qkv [B, N, 3, H, F] -> q and k turned and v as it is, [B, N, H, F] each, contiguous. The
// gradient of qkv is written at once, without one of each part being added to zeros.
CONTEXTPOOL_API std::tuple<at::Tensor, at::Tensor, at::Tensor> rotary_qkv(const at::Tensor& qkv, const at::Tensor& cos,
                                                                          const at::Tensor& sin);

}  // namespace contextpool
