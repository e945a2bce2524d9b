// rotary and rotary_qkv on CPU tensors: a product of complex numbers, as PyTorch computes it.
#include "contextpool/ops/rotary.h"

#include <ATen/ops/complex.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include <vector>

#include "ops/rotary.h"

namespace contextpool {
namespace {

// Pairs as complex numbers are a view where they lie side by side, each at an even distance from the first.
at::Tensor viewable(const at::Tensor& x) {
  bool fits = x.stride(-1) == 1 && x.storage_offset() % 2 == 0;
  for (int64_t d = 0; d < x.dim() - 1; ++d) fits = fits && x.stride(d) % 2 == 0;
  return fits ? x : x.contiguous();
}

at::Tensor rotary_cpu(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  check_rotary(x, cos, sin);
  auto sizes = cos.sizes().vec();  // [(batch,) tokens, 1, ..., pairs]
  sizes.insert(sizes.end() - 1, static_cast<std::size_t>(x.dim() - 3), 1);
  const auto turns = at::complex(cos, back ? sin.neg() : sin).view(sizes);
  const auto pairs = at::view_as_complex(viewable(x.to(cos.scalar_type())).unflatten(-1, {cos.size(-1), 2}));
  return at::view_as_real(pairs.mul(turns)).flatten(-2).to(x.scalar_type()).contiguous();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> rotary_qkv_cpu(const at::Tensor& qkv, const at::Tensor& cos,
                                                              const at::Tensor& sin) {
  check_rotary_qkv(qkv, cos, sin);
  return {rotary_cpu(qkv.select(2, 0), cos, sin, false), rotary_cpu(qkv.select(2, 1), cos, sin, false),
          qkv.select(2, 2).clone(at::MemoryFormat::Contiguous)};
}

at::Tensor rotary_qkv_backward_cpu(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv,
                                   const at::Tensor& cos, const at::Tensor& sin) {
  check_rotary_qkv_backward(dq, dk, dv, cos, sin);
  return at::stack({rotary_cpu(dq, cos, sin, true), rotary_cpu(dk, cos, sin, true), dv}, 2);
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CPU, m) {
  m.impl("rotary", rotary_cpu);
  m.impl("rotary_qkv", rotary_qkv_cpu);
  m.impl("_rotary_qkv_backward", rotary_qkv_backward_cpu);
}

}  // namespace contextpool
