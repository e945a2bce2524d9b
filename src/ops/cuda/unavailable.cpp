// Stands in for the CUDA registrations in a build without CUDA: a CUDA tensor is answered with what to do, but for
// operators that PyTorch's own can replace.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "ops/dynamic_convolution.h"
#include "ops/predict_windows.h"

namespace contextpool {
namespace {

[[noreturn]] void refuse(const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op,
                              ": this build of contextpool has no CUDA kernels. Move the tensors to the CPU, or build "
                              "contextpool with a CUDA toolkit (nvcc) against a PyTorch with CUDA: "
                              "cmake -DCONTEXTPOOL_CUDA=ON says what is missing");
}

at::Tensor pool1d_unavailable(const at::Tensor& /*x*/, const at::Tensor& /*log_weight*/, const at::Tensor& /*sigma*/,
                              bool /*causal*/, std::string_view /*algorithm*/) {
  refuse("contextpool::pool1d");
}

std::tuple<at::Tensor, at::Tensor> pool1d_keep_unavailable(const at::Tensor& /*x*/, const at::Tensor& /*log_weight*/,
                                                           const at::Tensor& /*sigma*/, bool /*causal*/,
                                                           std::string_view /*algorithm*/) {
  refuse("contextpool::pool1d");
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool1d_backward_unavailable(
    const at::Tensor& /*grad*/, const at::Tensor& /*x*/, const at::Tensor& /*log_weight*/, const at::Tensor& /*sigma*/,
    bool /*causal*/, std::string_view /*algorithm*/, const std::optional<at::Tensor>& /*kept*/) {
  refuse("contextpool::pool1d");
}

at::Tensor pool2d_unavailable(const at::Tensor& /*x*/, const at::Tensor& /*log_weight*/, const at::Tensor& /*sigma*/,
                              at::IntArrayRef /*stride*/, std::string_view /*algorithm*/) {
  refuse("contextpool::pool2d");
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool2d_backward_unavailable(
    const at::Tensor& /*grad*/, const at::Tensor& /*x*/, const at::Tensor& /*log_weight*/, const at::Tensor& /*sigma*/,
    at::IntArrayRef /*stride*/, std::string_view /*algorithm*/) {
  refuse("contextpool::pool2d");
}

at::Tensor dynamic_convolution_by_operators(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& up,
                                            const at::Tensor& weight, int64_t left, bool residual) {
  check_dynamic_convolution(x, inner, up, weight, left);
  return dynamic_convolution_composite(x, inner, up, weight, left, residual);
}

DynamicConvolutionGradients dynamic_convolution_backward_by_operators(const at::Tensor& grad, const at::Tensor& x,
                                                                      const at::Tensor& inner, const at::Tensor& up,
                                                                      const at::Tensor& weight, int64_t left,
                                                                      bool residual) {
  check_dynamic_convolution_backward(grad, x, inner, up, weight, left);
  return dynamic_convolution_backward_composite(grad, x, inner, up, weight, left, residual);
}

// For any operator, whatever it takes and gives.
void refuse_boxed(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  auto name = op.schema().name();
  if (const auto at = name.find("::_"); at != std::string::npos) name.erase(at + 2, 1);
  refuse(name.c_str());
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("pool1d", pool1d_unavailable);
  m.impl("_pool1d_keep", pool1d_keep_unavailable);
  m.impl("_pool1d_backward", pool1d_backward_unavailable);
  m.impl("pool2d", pool2d_unavailable);
  m.impl("_pool2d_backward", pool2d_backward_unavailable);
  m.impl("dynamic_convolution", dynamic_convolution_by_operators);
  m.impl("_dynamic_convolution_backward", dynamic_convolution_backward_by_operators);
  m.impl("predict_windows", predict_windows_by_operators);
  m.impl("_predict_windows_backward", predict_windows_backward_by_operators);
  for (const auto* op : {"rotary", "rotary_qkv", "_rotary_qkv_backward", "add_layer_norm", "_add_layer_norm_backward",
                         "bias_gelu", "_bias_gelu_backward", "cross_entropy", "_cross_entropy_backward",
                         "short_convolution", "_short_convolution_backward"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&refuse_boxed>());
  }
}

}  // namespace contextpool
