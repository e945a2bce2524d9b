// add_layer_norm on CUDA tensors: one kernel forward, two backward; PyTorch's operators for types and widths that the
// kernels do not have (float64, features that are not in fours, or more than 1024 of them).
#include "kernels/cuda/add_layer_norm/add_layer_norm.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/add_layer_norm.h"
#include "ops/storage.h"

namespace contextpool {
namespace {

constexpr std::uintptr_t kPiece = 16;  // bytes at which rows start

at::Tensor laid_out(const at::Tensor& x) {
  const auto rows = x.contiguous();
  return reinterpret_cast<std::uintptr_t>(rows.const_data_ptr()) % kPiece == 0 ? rows : rows.clone();
}

Type type_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return Type::f64;
    case at::kBFloat16: return Type::bf16;
    case at::kHalf: return Type::f16;
    default: return Type::f32;
  }
}

cuda::AddLayerNorm problem(const at::Tensor& x, at::ScalarType sum, at::ScalarType branch, at::ScalarType normed) {
  cuda::AddLayerNorm args;
  args.features = static_cast<int>(std::min<int64_t>(x.size(-1), 1 << 20));
  args.rows = args.features == 0 ? 0 : x.numel() / x.size(-1);
  args.sum_type = type_of(sum);
  args.branch_type = type_of(branch);
  args.normed_type = type_of(normed);
  return args;
}

AddLayerNormResults add_layer_norm_cuda(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                                        const at::Tensor& bias, double eps, std::optional<at::ScalarType> type) {
  check_add_layer_norm(x, branch, weight, bias, type);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto promoted = c10::promoteTypes(x.scalar_type(), branch.scalar_type());
  const auto normed_type = type.value_or(promoted);
  auto args = problem(x, promoted, branch.scalar_type(), normed_type);
  if (x.scalar_type() != promoted || args.rows == 0 || !cuda::add_layer_norm_fits(args)) {
    return add_layer_norm_composite(x, branch, weight, bias, eps, type);
  }
  const auto a = laid_out(x), b = laid_out(branch), w = laid_out(weight.to(at::kFloat)),
             shift = laid_out(bias.to(at::kFloat));
  args.eps = static_cast<float>(eps);
  args.weight = w.const_data_ptr<float>();
  args.bias = shift.const_data_ptr<float>();
  const auto statistics = [&] {
    return at::empty(x.sizes().slice(0, static_cast<std::size_t>(x.dim()) - 1), x.options().dtype(at::kFloat));
  };
  auto sum = at::empty(x.sizes(), x.options()), normed = at::empty(x.sizes(), x.options().dtype(normed_type));
  auto mean = statistics(), rstd = statistics();
  C10_CUDA_CHECK(cuda::add_layer_norm(args, a.const_data_ptr(), b.const_data_ptr(), sum.mutable_data_ptr(),
                                      normed.mutable_data_ptr(), mean.mutable_data_ptr<float>(),
                                      rstd.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream()));
  return {sum, normed, mean, rstd};
}

AddLayerNormResults add_layer_norm_backward_cuda(const std::optional<at::Tensor>& dsum, const at::Tensor& dnormed,
                                                 const at::Tensor& sum, const at::Tensor& weight,
                                                 const at::Tensor& mean, const at::Tensor& rstd,
                                                 std::optional<at::ScalarType> narrow) {
  check_add_layer_norm_backward(dsum, dnormed, sum, weight);
  const c10::cuda::CUDAGuard guard(sum.device());
  auto args = problem(sum, sum.scalar_type(), narrow.value_or(sum.scalar_type()), dnormed.scalar_type());
  if (args.rows == 0 || !cuda::add_layer_norm_fits(args)) {
    return add_layer_norm_backward_composite(dsum, dnormed, sum, weight, mean, rstd, narrow);
  }
  const auto w = laid_out(weight.to(at::kFloat)), g = laid_out(dnormed), x = laid_out(sum);
  const auto more = dsum ? laid_out(*dsum) : at::Tensor();
  const auto centre = mean.contiguous(), scale = rstd.contiguous();
  args.weight = w.const_data_ptr<float>();
  auto dx = at::empty(sum.sizes(), sum.options());
  auto dbranch = narrow ? at::empty(sum.sizes(), sum.options().dtype(narrow)) : at::empty({0}, sum.options());
  auto dweight = at::empty(weight.sizes(), w.options()), dbias = at::empty(weight.sizes(), w.options());
  const auto scratch = c10::cuda::CUDACachingAllocator::get()->allocate(cuda::add_layer_norm_backward_workspace(args));
  C10_CUDA_CHECK(cuda::add_layer_norm_backward(
      args, more.defined() ? more.const_data_ptr() : nullptr, g.const_data_ptr(), x.const_data_ptr(),
      centre.const_data_ptr<float>(), scale.const_data_ptr<float>(), dx.mutable_data_ptr(),
      narrow ? dbranch.mutable_data_ptr() : nullptr, dweight.mutable_data_ptr<float>(), dbias.mutable_data_ptr<float>(),
      scratch.get(), c10::cuda::getCurrentCUDAStream()));
  return {dx, dbranch, dweight.to(weight.scalar_type()), dbias.to(weight.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("add_layer_norm", add_layer_norm_cuda);
  m.impl("_add_layer_norm_backward", add_layer_norm_backward_cuda);
}

}  // namespace contextpool
