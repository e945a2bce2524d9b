// contextpool::pool1d: the schema, the checks, and the C++ function. The arithmetic is behind the dispatcher.
#include "contextpool/ops/pool1d.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "algorithm.h"
#include "checks.h"
#include "pool1d.h"

namespace contextpool {

void check_pool1d(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma,
                  std::string_view algorithm) {
  constexpr std::string_view op = "contextpool::pool1d";
  parse_sequence_algorithm(op, algorithm);
  check_types(op, x, log_weight, sigma);
  TORCH_CHECK(x.dim() >= 2, op, ": x must be [..., tokens, channels], but is ", shape(x));
  TORCH_CHECK(log_weight.dim() == x.dim() - 1, op, ": log_weight must be [..., tokens] with ", size(x.dim() - 1),
              " dimensions beside x ", shape(x), ", but is ", shape(log_weight));
  TORCH_CHECK(sigma.dim() == x.dim() - 1, op, ": sigma must be [..., targets] with ", size(x.dim() - 1),
              " dimensions beside x ", shape(x), ", but is ", shape(sigma));
  for (int64_t d = 0; d < x.dim() - 2; ++d) {
    TORCH_SYM_CHECK(log_weight.sym_size(d).sym_eq(x.sym_size(d)).sym_and(sigma.sym_size(d).sym_eq(x.sym_size(d))), op,
                    ": leading dimensions must be equal (no broadcasting), but are x ", shape(x), ", log_weight ",
                    shape(log_weight), ", sigma ", shape(sigma));
  }
  TORCH_SYM_CHECK(log_weight.sym_size(-1).sym_eq(x.sym_size(-2)), op, ": log_weight has ", size(log_weight, -1),
                  " tokens but x has ", size(x, -2), " (x ", shape(x), ", log_weight ", shape(log_weight), ")");
  TORCH_SYM_CHECK(sigma.sym_size(-1).sym_le(x.sym_size(-2)), op, ": sigma has ", size(sigma, -1),
                  " targets but x has only ", size(x, -2), " tokens (x ", shape(x), ", sigma ", shape(sigma), ")");
}

void check_pool1d_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& log_weight,
                           const at::Tensor& sigma, std::string_view algorithm) {
  check_pool1d(x, log_weight, sigma, algorithm);
  check_grad("contextpool::pool1d", grad, x, pool1d_result_sizes(x, sigma));
}

c10::SymDimVector pool1d_result_sizes(const at::Tensor& x, const at::Tensor& sigma) {
  c10::SymDimVector sizes(x.sym_sizes());
  sizes[sizes.size() - 2] = sigma.sym_size(-1);
  return sizes;
}

bool groups_side_by_side(const at::Tensor& x) {
  if (x.dim() != 4) return false;
  const auto near = x.sym_stride(1).sym_lt(x.sym_stride(2)), whole = x.sym_stride(3).sym_eq(1);
  return near.sym_and(whole).guard_bool(__FILE__, __LINE__);
}

at::Tensor empty_result(const at::Tensor& x, c10::SymIntArrayRef sizes) {
  if (!groups_side_by_side(x)) return at::empty_symint(sizes, x.options());
  return at::empty_symint({sizes[0], sizes[2], sizes[1], sizes[3]}, x.options()).transpose(1, 2);
}

at::Tensor laid_out_as_result(const at::Tensor& t, const at::Tensor& x) {
  return groups_side_by_side(x) ? t.transpose(1, 2).contiguous().transpose(1, 2) : t.contiguous();
}

at::Tensor pool1d(const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
                  std::string_view algorithm) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("contextpool::pool1d", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool, std::string_view)>();
  return op.call(x, log_weight, sigma, causal, algorithm);
}

std::tuple<at::Tensor, at::Tensor> pool1d_keep(const at::Tensor& x, const at::Tensor& log_weight,
                                               const at::Tensor& sigma, bool causal, std::string_view algorithm) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("contextpool::_pool1d_keep", "")
                             .typed<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                                       const at::Tensor&, bool, std::string_view)>();
  return op.call(x, log_weight, sigma, causal, algorithm);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool1d_backward(const at::Tensor& grad, const at::Tensor& x,
                                                               const at::Tensor& log_weight, const at::Tensor& sigma,
                                                               bool causal, std::string_view algorithm) {
  return pool1d_backward(grad, x, log_weight, sigma, causal, algorithm, std::nullopt);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pool1d_backward(const at::Tensor& grad, const at::Tensor& x,
                                                               const at::Tensor& log_weight, const at::Tensor& sigma,
                                                               bool causal, std::string_view algorithm,
                                                               const std::optional<at::Tensor>& kept) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("contextpool::_pool1d_backward", "")
                             .typed<std::tuple<at::Tensor, at::Tensor, at::Tensor>(
                                 const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool,
                                 std::string_view, const std::optional<at::Tensor>&)>();
  return op.call(grad, x, log_weight, sigma, causal, algorithm, kept);
}

TORCH_LIBRARY_FRAGMENT(contextpool, m) {
  m.def("pool1d(Tensor x, Tensor log_weight, Tensor sigma, *, bool causal=False, str algorithm=\"auto\") -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "_pool1d_backward(Tensor grad, Tensor x, Tensor log_weight, Tensor sigma, *, bool causal, str algorithm, "
      "Tensor? kept=None) -> (Tensor, Tensor, Tensor)",
      {at::Tag::pt2_compliant_tag});
  // CUDA only: pool1d, and what its backward can reuse.
  m.def("_pool1d_keep(Tensor x, Tensor log_weight, Tensor sigma, *, bool causal, str algorithm) -> (Tensor, Tensor)",
        {at::Tag::pt2_compliant_tag});
}

}  // namespace contextpool
