// contextpool::cross_entropy: the schema, the checks, and the C++ function.
#include "contextpool/ops/cross_entropy.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "checks.h"
#include "cross_entropy.h"

namespace contextpool {

constexpr std::string_view kOp = "contextpool::cross_entropy";

void check_cross_entropy(const at::Tensor& logits, const at::Tensor& target) {
  TORCH_CHECK(logits.defined() && target.defined(), kOp, ": logits and target must be tensors, but one is missing");
  TORCH_CHECK(is_feature_type(logits.scalar_type()), kOp,
              ": logits must be float64, float32, bfloat16 or float16, but are ", logits.scalar_type());
  TORCH_CHECK(target.scalar_type() == at::kLong, kOp, ": target must be int64, but is ", target.scalar_type());
  TORCH_CHECK(logits.device() == target.device(), kOp, ": logits and target must be on one device, but are on ",
              logits.device(), " and ", target.device());
  TORCH_CHECK(logits.dim() == 2 && target.dim() == 1, kOp,
              ": logits must be [rows, classes] and target [rows], but are ", shape(logits), " and ", shape(target),
              "; flatten them");
  TORCH_SYM_CHECK(logits.sym_size(0).sym_eq(target.sym_size(0)), kOp, ": logits have ", size(logits, 0),
                  " rows but target has ", size(target, 0));
  TORCH_SYM_CHECK(logits.sym_size(1).sym_ge(1), kOp, ": logits must have a class or more, but are ", shape(logits));
}

void check_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& target,
                                  const at::Tensor& log_sum) {
  check_cross_entropy(logits, target);
  for (const auto* t : {&grad, &log_sum}) {
    TORCH_CHECK(
        t->scalar_type() == loss_type(logits) && t->device() == logits.device() && t->sym_sizes() == target.sym_sizes(),
        kOp, ": the gradient and the log of sums must look like the losses, ", shape(target), " of ", loss_type(logits),
        ", but one is ", shape(*t), " of ", t->scalar_type());
  }
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t ignored) {
  return std::get<0>(cross_entropy_results(logits, target, ignored));
}

std::tuple<at::Tensor, at::Tensor> cross_entropy_results(const at::Tensor& logits, const at::Tensor& target,
                                                         int64_t ignored) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("contextpool::cross_entropy", "")
          .typed<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, int64_t)>();
  return op.call(logits, target, ignored);
}

at::Tensor cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& target,
                                  const at::Tensor& log_sum, int64_t ignored) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("contextpool::_cross_entropy_backward", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t)>();
  return op.call(grad, logits, target, log_sum, ignored);
}

TORCH_LIBRARY_FRAGMENT(contextpool, m) {
  m.def("cross_entropy(Tensor logits, Tensor target, *, int ignored=-100) -> (Tensor loss, Tensor log_sum)",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "_cross_entropy_backward(Tensor grad, Tensor logits, Tensor target, Tensor log_sum, *, int ignored=-100) -> "
      "Tensor",
      {at::Tag::pt2_compliant_tag});
}

}  // namespace contextpool
