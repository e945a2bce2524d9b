// predict_windows on CUDA tensors: one kernel forward, two backward; PyTorch's operators where these do not go.
#include "ops/predict_windows.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "kernels/cuda/predict_windows/predict_windows.h"
#include "ops/storage.h"

namespace contextpool {
namespace {

// The inputs in kernel layout; keeps alive the copies that had to be made.
struct Inputs {
  Inputs(const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight, const at::Tensor& out_bias,
         int64_t left, int64_t sizes, const SizeMap& map)
      : product(product.contiguous()),
        bias(bias.to(at::kFloat).contiguous()),
        weight(weight.to(at::kFloat).contiguous()),
        out_bias(out_bias.to(at::kFloat).contiguous()) {
    if (reinterpret_cast<std::uintptr_t>(this->product.const_data_ptr()) % cuda::kPredictWindowsAlignment != 0) {
      this->product = this->product.clone();
    }
    args.batch = product.size(0);
    args.tokens = product.size(1);
    args.hidden = weight.size(1);
    args.taps = weight.size(2);
    args.left = left;
    args.channels = weight.size(0);
    args.sizes = sizes;
    args.type = storage_type(product);
    args.size_range = static_cast<float>(map.size_range);
    args.shift = static_cast<float>(map.shift);
    args.least = static_cast<float>(map.least);
    args.span = static_cast<float>(map.span);
    args.product = this->product.const_data_ptr();
    args.bias = this->bias.const_data_ptr<float>();
    args.weight = this->weight.const_data_ptr<float>();
    args.out_bias = this->out_bias.const_data_ptr<float>();
  }
  bool composite() const { return product.numel() == 0 || !cuda::has_predict_windows(args); }

  at::Tensor product, bias, weight, out_bias;
  cuda::PredictWindows args;
};

// Made only where the kernels go: float64 stays as it is.
bool is_double(const at::Tensor& product) { return product.scalar_type() == at::kDouble; }

PredictedWindows predict_windows_cuda(const at::Tensor& product, const at::Tensor& bias, const at::Tensor& weight,
                                      const at::Tensor& out_bias, int64_t left, int64_t sizes, double size_range,
                                      double shift, double least, double span) {
  check_predict_windows(product, bias, weight, out_bias, left, sizes);
  const c10::cuda::CUDAGuard guard(product.device());
  const SizeMap map{size_range, shift, least, span};
  const auto composite = [&] { return predict_windows_composite(product, bias, weight, out_bias, left, sizes, map); };
  if (is_double(product)) return composite();
  const Inputs in(product, bias, weight, out_bias, left, sizes, map);
  if (in.composite()) return composite();
  const auto rows = [&](int64_t channels) {
    return at::empty({product.size(0), channels, product.size(1)}, in.bias.options());
  };
  auto log_weight = rows(weight.size(0) - sizes), sigma = rows(sizes), u = rows(sizes);
  C10_CUDA_CHECK(cuda::predict_windows(in.args, log_weight.mutable_data_ptr<float>(), sigma.mutable_data_ptr<float>(),
                                       u.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream()));
  return {log_weight, sigma, u};
}

PredictWindowsGradients predict_windows_backward_cuda(const at::Tensor& grad_log_weight, const at::Tensor& grad_sigma,
                                                      const at::Tensor& product, const at::Tensor& bias,
                                                      const at::Tensor& weight, const at::Tensor& out_bias,
                                                      const at::Tensor& u, int64_t left, double size_range,
                                                      double shift, double least, double span) {
  check_predict_windows_backward(grad_log_weight, grad_sigma, product, bias, weight, out_bias, u, left);
  const c10::cuda::CUDAGuard guard(product.device());
  const SizeMap map{size_range, shift, least, span};
  const auto composite = [&] {
    return predict_windows_backward_composite(grad_log_weight, grad_sigma, product, bias, weight, out_bias, u, left,
                                              map);
  };
  if (is_double(product)) return composite();
  const Inputs in(product, bias, weight, out_bias, left, u.size(1), map);
  if (in.composite()) return composite();
  const auto dl = grad_log_weight.contiguous(), dsigma = grad_sigma.contiguous(), of_sizes = u.contiguous();
  auto dproduct = at::empty(product.sizes(), product.options());
  const auto hidden = bias.numel(), weights = weight.numel(), channels = out_bias.numel();
  const auto sums = at::empty({weights + hidden + channels}, in.bias.options());
  const auto scratch =
      c10::cuda::CUDACachingAllocator::get()->allocate(cuda::predict_windows_backward_workspace(in.args));
  C10_CUDA_CHECK(cuda::predict_windows_backward(
      in.args, of_sizes.const_data_ptr<float>(), dl.const_data_ptr<float>(), dsigma.const_data_ptr<float>(),
      dproduct.mutable_data_ptr(), sums.mutable_data_ptr<float>(), scratch.get(), c10::cuda::getCurrentCUDAStream()));
  // Tensors of their own: parts of one would keep the others alive as gradients.
  const auto part = [&](int64_t first, const at::Tensor& like) {
    return sums.narrow(0, first, like.numel())
        .view(like.sizes())
        .to(like.scalar_type(), /*non_blocking=*/false,
            /*copy=*/true);
  };
  return {dproduct, part(weights, bias), part(0, weight), part(weights + hidden, out_bias)};
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("predict_windows", predict_windows_cuda);
  m.impl("_predict_windows_backward", predict_windows_backward_cuda);
}

}  // namespace contextpool
