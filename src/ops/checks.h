// What every operator asks of its tensors before any arithmetic. Sizes are symbolic so that the same checks serve
// the Meta registration under torch.compile and torch.export.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <string>
#include <string_view>

namespace contextpool {

// Sizes as text, "8" and "[2, 8, 4]", for messages. No number is streamed into a message, neither a SymInt nor a plain
// one: in a Python process where torch 2.11 brings parts of another libstdc++ (seen on a machine with g++ 13), the
// stream takes another facet for that of numbers, and the process crashes. Strings are safe.
std::string size(const c10::SymInt& n);
std::string size(const at::Tensor& t, int64_t dim);
std::string shape(c10::SymIntArrayRef sizes);
std::string shape(at::IntArrayRef sizes);
std::string shape(const at::Tensor& t);

// What features may be: float64, float32, bfloat16 or float16.
inline bool is_feature_type(at::ScalarType type) {
  return type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

// None of them may be missing (None in Python). The other checks assume this; so does differentiation.
void check_defined(std::string_view op, const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma);

// Floating dtype of x, the float32/float64 rule for log_weight and sigma, one device.
void check_types(std::string_view op, const at::Tensor& x, const at::Tensor& log_weight, const at::Tensor& sigma);

// The gradient handed to a backward must look like the result of the forward.
void check_grad(std::string_view op, const at::Tensor& grad, const at::Tensor& x, c10::SymIntArrayRef result_sizes);

}  // namespace contextpool
