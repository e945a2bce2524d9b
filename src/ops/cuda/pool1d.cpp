// pool1d on CUDA tensors: lays the inputs out as the kernels want them, takes scratch memory from PyTorch's allocator
// and hands over plain pointers and the current stream. Nothing waits for the device.
#include "kernels/cuda/pool1d/pool1d.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/inputs.h"
#include "ops/pool1d.h"

namespace contextpool {
namespace {

constexpr std::int64_t kPiece = 8;  // half-type channels that the kernels move at once: 16 bytes

bool is_half(const at::Tensor& x) { return x.element_size() == 2; }

// [batch, tokens, channels] with contiguous channels: a view where strides allow it, else a copy. Half types: rows
// start at 16 bytes, with channels of zeros at the end where there are not whole pieces.
at::Tensor as_rows(const at::Tensor& x) {
  auto rows = x.dim() == 3 ? x : x.reshape({-1, x.size(-2), x.size(-1)});
  if (!is_half(x)) return rows.stride(2) == 1 ? rows : rows.contiguous();
  if (const auto rest = rows.size(2) % kPiece; rest != 0) return at::constant_pad_nd(rows, {0, kPiece - rest});
  const bool whole = rows.stride(2) == 1 && rows.stride(1) % kPiece == 0 && rows.stride(0) % kPiece == 0 &&
                     reinterpret_cast<std::uintptr_t>(rows.const_data_ptr()) % (2 * kPiece) == 0;
  return whole ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

// A result of these sizes whose last dimension the kernels may fill up to `channels`.
at::Tensor empty_rows(at::IntArrayRef sizes, std::int64_t channels, const at::TensorOptions& options) {
  auto padded = sizes.vec();
  padded.back() = channels;
  return at::empty(padded, options);
}
at::Tensor without_padding(const at::Tensor& rows, std::int64_t channels) {
  return rows.size(-1) == channels ? rows : rows.narrow(-1, 0, channels).contiguous();
}

Pool1dInputs inputs_of(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
                       std::string_view algorithm) {
  const auto rows = as_rows(x);
  TORCH_CHECK(rows.size(1) < (1 << 28), "contextpool::pool1d: sequences on CUDA may have up to 2^28 - 1 tokens, ",
              "but x is ", shape(x));
  return {rows, log_weight, sigma, causal, algorithm};
}

// The sizes of what is kept, for what traces. Pointers and strides do not come into them.
std::tuple<at::Tensor, at::Tensor> pool1d_keep_meta(const at::Tensor& x, const at::Tensor& log_weight,
                                                    const at::Tensor& sigma, bool causal, std::string_view algorithm) {
  check_pool1d(x, log_weight, sigma, algorithm);
  const auto sizes = pool1d_result_sizes(x, sigma);
  auto y = at::empty(C10_AS_INTARRAYREF_SLOW(sizes), x.options());
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
    return {at::empty(C10_AS_INTARRAYREF_SLOW(sizes), x.options()), at::empty({0}, x.options().dtype(at::kByte))};
  }
  const auto in = inputs_of(x, log_weight, sigma, causal, algorithm);
  auto y = empty_rows(C10_AS_INTARRAYREF_SLOW(sizes), in.args.channels, x.options());
  auto kept = at::empty({static_cast<std::int64_t>(cuda::pool1d_kept(in.args))}, x.options().dtype(at::kByte));
  C10_CUDA_CHECK(
      cuda::pool1d(in.args, y.mutable_data_ptr(), kept.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return {without_padding(y, x.size(-1)), kept};
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
  if (grad.numel() == 0) return {at::zeros_like(x), dlog_weight.zero_(), dsigma.zero_()};
  const auto in = inputs_of(x, log_weight, sigma, causal, algorithm);
  auto dx = empty_rows(x.sizes(), in.args.channels, x.options());
  const auto dy = as_rows(grad).contiguous();
  TORCH_CHECK(!kept || (kept->scalar_type() == at::kByte && kept->device() == x.device() &&
                        static_cast<std::size_t>(kept->numel()) == cuda::pool1d_kept(in.args)),
              "contextpool::pool1d: kept is not what _pool1d_keep gave for these inputs");
  const auto scratch =
      c10::cuda::CUDACachingAllocator::get()->allocate(cuda::pool1d_backward_workspace(in.args, kept.has_value()));
  C10_CUDA_CHECK(cuda::pool1d_backward(
      in.args, dy.const_data_ptr(), dx.mutable_data_ptr(), dlog_weight.mutable_data_ptr(), dsigma.mutable_data_ptr(),
      kept ? kept->const_data_ptr() : nullptr, scratch.get(), c10::cuda::getCurrentCUDAStream()));
  return {without_padding(dx, x.size(-1)), dlog_weight, dsigma};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("pool1d", pool1d_cuda);
  m.impl("_pool1d_keep", pool1d_keep_cuda);
  m.impl("_pool1d_backward", pool1d_backward_cuda);
}

TORCH_LIBRARY_IMPL(contextpool, Meta, m) { m.impl("_pool1d_keep", pool1d_keep_meta); }

}  // namespace contextpool
