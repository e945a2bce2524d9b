#include "contextpool/nn/positions.h"

#include <algorithm>

#include "base/words.h"
#include "contextpool/ops/rotary.h"

namespace contextpool::nn {
namespace {

constexpr double kBase = 10000;

// Angles p * base^(-2k / width) of positions 0 .. count - 1 and pairs k < width / 2, in float64.
torch::Tensor angles(int64_t count, int64_t width, const torch::Device& device) {
  const auto type = torch::TensorOptions().dtype(torch::kFloat64).device(device);
  const auto frequency = torch::pow(kBase, torch::arange(0, width, 2, type) / -static_cast<double>(width));
  return torch::outer(torch::arange(count, type), frequency);
}

// Turns are complex numbers of the type that holds x; half types have none of their own.
torch::ScalarType complex_type(torch::ScalarType type) {
  return type == torch::kFloat64 ? torch::kComplexDouble : torch::kComplexFloat;
}

}  // namespace

PositionsImpl::PositionsImpl(PositionsOptions options) : options_(std::move(options)) {
  check_word("Positions", "kind", options_.kind, {"rotary", "learned", "sinusoidal"});
  TORCH_CHECK_VALUE(options_.heads > 0 && options_.features > 0 && options_.features % options_.heads == 0,
                    "Positions: features must be a multiple of heads, but are ", options_.features, " and ",
                    options_.heads);
  if (options_.kind == "rotary") {
    TORCH_CHECK_VALUE(options_.features / options_.heads % 2 == 0,
                      "Positions: rotary positions turn pairs of channels, so a head needs an even number, but ",
                      options_.features, " features in ", options_.heads, " heads are ",
                      options_.features / options_.heads, " each");
  } else if (options_.kind == "learned") {
    TORCH_CHECK_VALUE(options_.length > 0, "Positions: learned positions need a length, but it is ", options_.length);
    weight_ = register_parameter("weight", torch::empty({options_.length, options_.features}));
    torch::nn::init::normal_(weight_, 0, 0.02);
  } else {
    TORCH_CHECK_VALUE(options_.features % 2 == 0, "Positions: sinusoidal positions need even features, but they are ",
                      options_.features);
  }
}

torch::Tensor PositionsImpl::add(const torch::Tensor& x, int64_t first, const torch::Tensor& at) {
  if (options_.kind == "rotary") return x;
  const auto count = x.size(1);
  if (options_.kind == "sinusoidal") return x + table(x, first, at);
  TORCH_CHECK(first + count <= options_.length, "Positions: ", first + count, " tokens, but only ", options_.length,
              " positions were learned: use shorter rows, or rotary or sinusoidal positions");
  return x + (at.defined() ? torch::embedding(weight_, at) : weight_.narrow(0, first, count));
}

Rotation PositionsImpl::rotation(const torch::Tensor& x, int64_t first, const torch::Tensor& at) {
  if (options_.kind != "rotary") return {};
  return table(x, first, at);
}

torch::Tensor PositionsImpl::table(const torch::Tensor& x, int64_t first, const torch::Tensor& at) {
  const bool rotary = options_.kind == "rotary";
  const auto count = x.size(1);
  const auto type = rotary ? complex_type(x.scalar_type()) : x.scalar_type();
  int64_t longest = 0;
  for (const auto& table : tables_) {
    if (table.device() != x.device() || table.scalar_type() != type) continue;
    longest = std::max(longest, table.size(0));
    if (table.size(0) >= first + count) return at.defined() ? table.index({at}) : table.narrow(0, first, count);
  }
  const c10::InferenceMode no_inference(false);  // the table may be needed in training later
  const torch::NoGradGuard no_grad;
  const auto rows = std::max(first + count, 2 * longest);
  const auto angle = angles(rows, rotary ? options_.features / options_.heads : options_.features, x.device());
  tables_.push_back(rotary ? torch::polar(torch::ones_like(angle), angle).to(type)
                           : torch::stack({angle.sin(), angle.cos()}, -1).flatten(1).to(type));
  return table(x, first, at);
}

torch::Tensor positions_of(const torch::Tensor& real) {
  return real.defined() ? (real.cumsum(1) - 1).clamp_min(0) : real;
}

torch::Tensor rotate(const torch::Tensor& x, const Rotation& rotation) {
  if (!rotation.defined()) return x;
  return contextpool::rotary(x, torch::real(rotation), torch::imag(rotation));
}

}  // namespace contextpool::nn
