#include "checks.h"

#include <c10/util/Exception.h>

namespace contextpool {

void check_defined(std::string_view op, const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma) {
  TORCH_CHECK(x.defined() && log_weight.defined() && sigma.defined(), op, ": ",
              !x.defined()            ? "x"
              : !log_weight.defined() ? "log_weight"
                                      : "sigma",
              " must be a tensor, but is missing (None)");
}

void check_types(std::string_view op, const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma) {
  check_defined(op, x, log_weight, sigma);
  const auto type = x.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf, op,
              ": x must be float64, float32, bfloat16 or float16, but is ", type);
  const auto want = type == at::kDouble ? at::kDouble : at::kFloat;
  TORCH_CHECK(log_weight.scalar_type() == want, op, ": log_weight must be ", want, " beside x of ", type, ", but is ",
              log_weight.scalar_type());
  TORCH_CHECK(sigma.scalar_type() == want, op, ": sigma must be ", want, " beside x of ", type, ", but is ",
              sigma.scalar_type());
  TORCH_CHECK(log_weight.device() == x.device() && sigma.device() == x.device(), op,
              ": x, log_weight and sigma must be on one device, but are on ", x.device(), ", ", log_weight.device(),
              " and ", sigma.device());
}

void check_grad(std::string_view op, const at::Tensor& grad, const at::Tensor& x, c10::SymIntArrayRef result_sizes) {
  TORCH_CHECK(grad.sym_sizes() == result_sizes, op, ": the gradient must have the shape of the result, ", result_sizes,
              ", but is ", grad.sym_sizes());
  TORCH_CHECK(grad.scalar_type() == x.scalar_type() && grad.device() == x.device(), op, ": the gradient must be ",
              x.scalar_type(), " on ", x.device(), ", but is ", grad.scalar_type(), " on ", grad.device());
}

}  // namespace contextpool
