// Shapes, dtypes and strides of rotary and rotary_qkv without data: what torch.compile and torch.export trace with.
#include "ops/rotary.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>

namespace contextpool {
namespace {

at::Tensor rotary_meta(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool /*back*/) {
  check_rotary(x, cos, sin);
  return at::empty_symint(x.sym_sizes(), x.options());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> rotary_qkv_meta(const at::Tensor& qkv, const at::Tensor& cos,
                                                               const at::Tensor& sin) {
  check_rotary_qkv(qkv, cos, sin);
  c10::SymDimVector sizes(qkv.sym_sizes());
  sizes.erase(sizes.begin() + 2);
  const auto part = [&] { return at::empty_symint(sizes, qkv.options()); };
  return {part(), part(), part()};
}

at::Tensor rotary_qkv_backward_meta(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv,
                                    const at::Tensor& cos, const at::Tensor& sin) {
  check_rotary_qkv_backward(dq, dk, dv, cos, sin);
  c10::SymDimVector sizes(dq.sym_sizes());
  sizes.insert(sizes.begin() + 2, c10::SymInt(3));
  return at::empty_symint(sizes, dq.options());
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, Meta, m) {
  m.impl("rotary", rotary_meta);
  m.impl("rotary_qkv", rotary_qkv_meta);
  m.impl("_rotary_qkv_backward", rotary_qkv_backward_meta);
}

}  // namespace contextpool
