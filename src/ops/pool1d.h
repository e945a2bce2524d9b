// Shared by the registrations of pool1d: the checks, the algorithm names, the typed dispatcher handles.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace contextpool {

// What include/contextpool/ops/pool1d.h asks of the inputs; throws with the operator, what was expected and what came.
void check_pool1d(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                  std::string_view algorithm);
void check_pool1d_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& log_weight,
                           const at::Tensor& sigma, std::string_view algorithm);

// Sizes of the result: x's with N replaced by M.
c10::SymDimVector pool1d_result_sizes(const at::Tensor& x, const at::Tensor& sigma);

// Whether x [rows, groups, tokens, channels] has the groups of a token side by side in memory, as has the transpose of
// [rows, tokens, groups, channels]. Results (y, dx) then have, too, and the kernels take them as they lie.
bool groups_side_by_side(const at::Tensor& x);

// A result of these sizes for x, and a tensor of a result's sizes laid out as one.
at::Tensor empty_result(const at::Tensor& x, c10::SymIntArrayRef sizes);
at::Tensor laid_out_as_result(const at::Tensor& t, const at::Tensor& x);

// pool1d of CUDA tensors, and its plan and tree: opaque bytes, for the backward of the same inputs.
std::tuple<at::Tensor, at::Tensor> pool1d_keep(const at::Tensor& x, const at::Tensor& log_weight,
                                               const at::Tensor& sigma, bool causal, std::string_view algorithm);

// The public pool1d_backward, which recomputes what is not kept.
std::tuple<at::Tensor, at::Tensor, at::Tensor> pool1d_backward(const at::Tensor& grad, const at::Tensor& x,
                                                               const at::Tensor& log_weight, const at::Tensor& sigma,
                                                               bool causal, std::string_view algorithm,
                                                               const std::optional<at::Tensor>& kept);

}  // namespace contextpool
