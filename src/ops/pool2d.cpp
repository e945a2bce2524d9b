// contextpool::pool2d: the schema, the checks, and the C++ function. The arithmetic is behind the dispatcher.
#include "contextpool/ops/pool2d.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>

#include "algorithm.h"
#include "checks.h"
#include "pool2d.h"

namespace contextpool {
namespace {

constexpr std::string_view kOp = "contextpool::pool2d";

// ceil(size / stride). A stride beyond any size is cut so that the sum cannot overflow.
c10::SymInt targets(const c10::SymInt& size, int64_t stride) {
  stride = std::min(stride, int64_t{1} << 62);
  return (size + (stride - 1)) / stride;
}

}  // namespace

void check_pool2d(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, at::IntArrayRef stride,
                  std::string_view algorithm) {
  parse_map_algorithm(kOp, algorithm);
  check_types(kOp, x, log_weight, sigma);
  TORCH_CHECK_VALUE(stride.size() == 2 && stride[0] >= 1 && stride[1] >= 1, kOp,
                    ": stride must be two numbers of at least 1, but is ", shape(stride));
  TORCH_CHECK(x.dim() == 4, kOp, ": x must be [batch, channels, height, width], but is ", shape(x));
  TORCH_CHECK(log_weight.dim() == 3, kOp, ": log_weight must be [batch, height, width] beside x ", shape(x),
              ", but is ", shape(log_weight));
  TORCH_CHECK(sigma.dim() == 3, kOp, ": sigma must be [batch, ceil(height / stride), ceil(width / stride)] beside x ",
              shape(x), ", but is ", shape(sigma));
  TORCH_SYM_CHECK(log_weight.sym_size(0).sym_eq(x.sym_size(0)).sym_and(sigma.sym_size(0).sym_eq(x.sym_size(0))), kOp,
                  ": batch sizes must be equal (no broadcasting), but are x ", shape(x), ", log_weight ",
                  shape(log_weight), ", sigma ", shape(sigma));
  TORCH_SYM_CHECK(log_weight.sym_size(1).sym_eq(x.sym_size(2)).sym_and(log_weight.sym_size(2).sym_eq(x.sym_size(3))),
                  kOp, ": log_weight is a map of ", size(log_weight, 1), " x ", size(log_weight, 2),
                  " but x is one of ", size(x, 2), " x ", size(x, 3), " (x ", shape(x), ", log_weight ",
                  shape(log_weight), ")");
  const auto height = targets(x.sym_size(2), stride[0]);
  const auto width = targets(x.sym_size(3), stride[1]);
  TORCH_SYM_CHECK(sigma.sym_size(1).sym_eq(height).sym_and(sigma.sym_size(2).sym_eq(width)), kOp, ": sigma has ",
                  size(sigma, 1), " x ", size(sigma, 2), " targets but x of ", size(x, 2), " x ", size(x, 3),
                  " with stride ", shape(stride), " has ", size(height), " x ", size(width), " (x ", shape(x),
                  ", sigma ", shape(sigma), ")");
}

void check_pool2d_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& log_weight,
                           const at::Tensor& sigma, at::IntArrayRef stride, std::string_view algorithm) {
  check_pool2d(x, log_weight, sigma, stride, algorithm);
  check_grad(kOp, grad, x, pool2d_result_sizes(x, sigma));
}

c10::SymDimVector pool2d_result_sizes(const at::Tensor& x, const at::Tensor& sigma) {
  return {x.sym_size(0), x.sym_size(1), sigma.sym_size(1), sigma.sym_size(2)};
}

at::Tensor pool2d(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, at::IntArrayRef stride,
                  std::string_view algorithm) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("contextpool::pool2d", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::IntArrayRef,
                                               std::string_view)>();
  return op.call(x, log_weight, sigma, stride, algorithm);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool2d_backward(const at::Tensor& grad, const at::Tensor& x,
                                                               const at::Tensor& log_weight, const at::Tensor& sigma,
                                                               at::IntArrayRef stride, std::string_view algorithm) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("contextpool::_pool2d_backward", "")
                             .typed<std::tuple<at::Tensor, at::Tensor, at::Tensor>(
                                 const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 at::IntArrayRef, std::string_view)>();
  return op.call(grad, x, log_weight, sigma, stride, algorithm);
}

TORCH_LIBRARY_FRAGMENT(contextpool, m) {
  m.def("pool2d(Tensor x, Tensor log_weight, Tensor sigma, *, int[2] stride=[1, 1], str algorithm=\"auto\") -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "_pool2d_backward(Tensor grad, Tensor x, Tensor log_weight, Tensor sigma, *, int[2] stride, str algorithm) -> "
      "(Tensor, Tensor, Tensor)",
      {at::Tag::pt2_compliant_tag});
}

}  // namespace contextpool
