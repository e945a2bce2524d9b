#include "checks.h"

#include <c10/util/Exception.h>

namespace contextpool {
namespace {

template <class Sizes, class Text>
std::string in_brackets(const Sizes& sizes, const Text& text) {
  std::string list = "[";
  for (const auto& n : sizes) list += (list.size() > 1 ? ", " : "") + text(n);
  return list + "]";
}

}  // namespace

std::string size(const c10::SymInt& n) {
  const auto known = n.maybe_as_int();
  return known ? std::to_string(*known) : n.toSymNode()->str();
}

std::string size(const at::Tensor& t, int64_t dim) { return size(t.sym_size(dim)); }

std::string shape(c10::SymIntArrayRef sizes) {
  return in_brackets(sizes, [](const c10::SymInt& n) { return size(n); });
}

std::string shape(at::IntArrayRef sizes) {
  return in_brackets(sizes, [](int64_t n) { return std::to_string(n); });
}

std::string shape(const at::Tensor& t) { return shape(t.sym_sizes()); }

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
  TORCH_CHECK(is_feature_type(type), op, ": x must be float64, float32, bfloat16 or float16, but is ", type);
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
  TORCH_CHECK(grad.sym_sizes() == result_sizes, op, ": the gradient must have the shape of the result, ",
              shape(result_sizes), ", but is ", shape(grad));
  TORCH_CHECK(grad.scalar_type() == x.scalar_type() && grad.device() == x.device(), op, ": the gradient must be ",
              x.scalar_type(), " on ", x.device(), ", but is ", grad.scalar_type(), " on ", grad.device());
}

}  // namespace contextpool
