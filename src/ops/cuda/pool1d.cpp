// pool1d on CUDA tensors: lays the inputs out as the kernels want them, takes scratch memory from PyTorch's allocator
// and hands over plain pointers and the current stream. Nothing waits for the device.
#include "kernels/cuda/pool1d/pool1d.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/checks.h"
#include "ops/inputs.h"
#include "ops/pool1d.h"

namespace contextpool {
namespace {

constexpr std::int64_t kPiece = 8;  // half-type channels that the kernels move at once: 16 bytes

bool is_half(const at::Tensor& x) { return x.element_size() == 2; }

// With contiguous channels: a view where strides allow it, else a copy. Half types: rows start at 16 bytes, with
// channels of zeros at the end where there are not whole pieces.
at::Tensor whole_rows(const at::Tensor& rows) {
  if (!is_half(rows)) return rows.stride(-1) == 1 ? rows : rows.contiguous();
  if (const auto rest = rows.size(-1) % kPiece; rest != 0) {
    return at::constant_pad_nd(rows, {0, kPiece - rest}).contiguous();
  }
  const auto strides = rows.strides().slice(0, rows.dim() - 1);
  const bool whole = rows.stride(-1) == 1 &&
                     std::all_of(strides.begin(), strides.end(), [](auto stride) { return stride % kPiece == 0; }) &&
                     reinterpret_cast<std::uintptr_t>(rows.const_data_ptr()) % (2 * kPiece) == 0;
  return whole ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

// [batch, tokens, channels], or [rows, groups, tokens, channels] where groups are side by side.
at::Tensor as_rows(const at::Tensor& x) {
  if (groups_side_by_side(x)) return whole_rows(x.transpose(1, 2)).transpose(1, 2);
  return whole_rows(x.dim() == 3 ? x : x.reshape({-1, x.size(-2), x.size(-1)}));
}

// A result for x whose last dimension the kernels may fill up to `channels`.
at::Tensor empty_rows(const at::Tensor& x, c10::SymIntArrayRef sizes, std::int64_t channels) {
  c10::SymDimVector padded(sizes);
  padded.back() = channels;
  return empty_result(x, padded);
}
at::Tensor without_padding(const at::Tensor& rows, const at::Tensor& x) {
  return rows.size(-1) == x.size(-1) ? rows : laid_out_as_result(rows.narrow(-1, 0, x.size(-1)), x);
}

// The gradient of a result for x, laid out as one, with padding.
at::Tensor dy_rows(const at::Tensor& grad, const at::Tensor& x) {
  if (!groups_side_by_side(x)) return whole_rows(grad.reshape({-1, grad.size(-2), grad.size(-1)})).contiguous();
  return whole_rows(grad.transpose(1, 2).contiguous());
}

Pool1dInputs inputs_of(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
                       std::string_view algorithm) {
  const auto rows = as_rows(x);
  TORCH_CHECK(rows.size(-2) < (1 << 28), "contextpool::pool1d: sequences on CUDA may have up to 2^28 - 1 tokens, ",
              "but x is ", shape(x));
  return {rows, log_weight, sigma, causal, algorithm};
}

// The sizes of what is kept, for what traces. Pointers and strides do not come into them.
std::tuple<at::Tensor, at::Tensor> pool1d_keep_meta(const at::Tensor& x, const at::Tensor& log_weight,
                                                    const at::Tensor& sigma, bool causal, std::string_view algorithm) {
  check_pool1d(x, log_weight, sigma, algorithm);
  const auto sizes = pool1d_result_sizes(x, sigma);
  auto y = empty_result(x, sizes);
  if (y.numel() == 0) return {y, at::empty({0}, x.options().dtype(at::kByte))};
  Pool1d in;
  in.tokens = x.size(-2);
  in.batch = x.numel() / (x.size(-2) * x.size(-1));
  in.targets = sigma.size(-1);
  in.channels = is_half(x) ? (x.size(-1) + kPiece - 1) / kPiece * kPiece : x.size(-1);
  in.causal = causal;
  in.algorithm = parse_sequence_algorithm("contextpool::pool1d", algorithm);
  in.type = storage_type(x);
  return {y, at::empty({static_cast<std::int64_t>(cuda::pool1d_kept(in))}, x.options().dtype(at::kByte))};
}

std::tuple<at::Tensor, at::Tensor> pool1d_keep_cuda(const at::Tensor& x, const at::Tensor& log_weight,
                                                    const at::Tensor& sigma, bool causal, std::string_view algorithm) {
  check_pool1d(x, log_weight, sigma, algorithm);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto sizes = pool1d_result_sizes(x, sigma);
  if (c10::multiply_integers(C10_AS_INTARRAYREF_SLOW(sizes)) == 0) {
    return {empty_result(x, sizes), at::empty({0}, x.options().dtype(at::kByte))};
  }
  const auto in = inputs_of(x, log_weight, sigma, causal, algorithm);
  auto y = empty_rows(x, sizes, in.args.channels);
  auto kept = at::empty({static_cast<std::int64_t>(cuda::pool1d_kept(in.args))}, x.options().dtype(at::kByte));
  C10_CUDA_CHECK(
      cuda::pool1d(in.args, y.mutable_data_ptr(), kept.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return {without_padding(y, x), kept};
}

at::Tensor pool1d_cuda(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
                       std::string_view algorithm) {
  return std::get<0>(pool1d_keep_cuda(x, log_weight, sigma, causal, algorithm));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool1d_backward_cuda(const at::Tensor& grad, const at::Tensor& x,
                                                                    const at::Tensor& log_weight,
                                                                    const at::Tensor& sigma, bool causal,
                                                                    std::string_view algorithm,
                                                                    const std::optional<at::Tensor>& kept) {
  check_pool1d_backward(grad, x, log_weight, sigma, algorithm);
  const c10::cuda::CUDAGuard guard(x.device());
  auto dlog_weight = at::empty(log_weight.sizes(), log_weight.options());
  auto dsigma = at::empty(sigma.sizes(), sigma.options());
  if (grad.numel() == 0) return {empty_result(x, x.sym_sizes()).zero_(), dlog_weight.zero_(), dsigma.zero_()};
  const auto in = inputs_of(x, log_weight, sigma, causal, algorithm);
  auto dx = empty_rows(x, x.sym_sizes(), in.args.channels);
  const auto dy = dy_rows(grad, x);
  TORCH_CHECK(!kept || (kept->scalar_type() == at::kByte && kept->device() == x.device() &&
                        static_cast<std::size_t>(kept->numel()) == cuda::pool1d_kept(in.args)),
              "contextpool::pool1d: kept is not what _pool1d_keep gave for these inputs");
  const auto scratch =
      c10::cuda::CUDACachingAllocator::get()->allocate(cuda::pool1d_backward_workspace(in.args, kept.has_value()));
  C10_CUDA_CHECK(cuda::pool1d_backward(
      in.args, dy.const_data_ptr(), dx.mutable_data_ptr(), dlog_weight.mutable_data_ptr(), dsigma.mutable_data_ptr(),
      kept ? kept->const_data_ptr() : nullptr, scratch.get(), c10::cuda::getCurrentCUDAStream()));
  return {without_padding(dx, x), dlog_weight, dsigma};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("pool1d", pool1d_cuda);
  m.impl("_pool1d_keep", pool1d_keep_cuda);
  m.impl("_pool1d_backward", pool1d_backward_cuda);
}

TORCH_LIBRARY_IMPL(contextpool, Meta, m) { m.impl("_pool1d_keep", pool1d_keep_meta); }

}  // namespace contextpool
