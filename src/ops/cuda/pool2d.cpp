// pool2d has CPU kernels only: a CUDA tensor is answered with what to do.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <string_view>
#include <tuple>

namespace contextpool {
namespace {

[[noreturn]] void refuse() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "contextpool::pool2d: there are no CUDA kernels for maps; move x, log_weight and sigma to "
      "the CPU");
}

at::Tensor pool2d_cuda(const at::Tensor& /*x*/, const at::Tensor& /*log_weight*/, const at::Tensor& /*sigma*/,
                       at::IntArrayRef /*stride*/, std::string_view /*algorithm*/) {
  refuse();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool2d_backward_cuda(const at::Tensor& /*grad*/, const at::Tensor& /*x*/,
                                                                    const at::Tensor& /*log_weight*/,
                                                                    const at::Tensor& /*sigma*/,
                                                                    at::IntArrayRef /*stride*/,
                                                                    std::string_view /*algorithm*/) {
  refuse();
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("pool2d", pool2d_cuda);
  m.impl("_pool2d_backward", pool2d_backward_cuda);
}

}  // namespace contextpool
