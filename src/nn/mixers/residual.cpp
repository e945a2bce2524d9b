#include "nn/mixers/residual.h"

#include "base/words.h"
#include "nn/mixers/mixers.h"

namespace contextpool::nn {
namespace {

constexpr double kScale = 0.5;  // at first, of either sign
constexpr int64_t kPiece = 8;   // numbers of 16 bits that a GPU moves at once

// base + c * mixed, all of a shape and dtype, in one pass, and its gradients in two.
class Gate : public torch::autograd::Function<Gate> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& base, const torch::Tensor& c,
                               const torch::Tensor& mixed) {
    ctx->save_for_backward({c, mixed});
    return torch::addcmul(base, c, mixed);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {grads[0], grads[0] * saved[1], grads[0] * saved[0]};
  }
};

}  // namespace

LowRankImpl::LowRankImpl(int64_t in, int64_t rank, int64_t out) {
  down = register_module("down", Linear(torch::nn::LinearOptions(in, rank).bias(false)));
  up = register_module("up", Linear(torch::nn::LinearOptions(rank, out).bias(false)));
  torch::nn::init::zeros_(up->weight);
}

torch::Tensor LowRankImpl::forward(const torch::Tensor& h, const torch::Tensor& bias) {
  return torch::linear(inner(h), outer(h), bias);
}

torch::Tensor LowRankImpl::inner(const torch::Tensor& h) {
  const auto rest = h.is_cuda() ? -down->weight.size(0) & (kPiece - 1) : 0;
  return rest == 0 ? down(h) : torch::linear(h, torch::constant_pad_nd(down->weight, {0, 0, 0, rest}));
}

torch::Tensor LowRankImpl::outer(const torch::Tensor& h) const {
  const auto rest = h.is_cuda() ? -up->weight.size(1) & (kPiece - 1) : 0;
  return rest == 0 ? up->weight : torch::constant_pad_nd(up->weight, {0, rest});
}

void LowRankImpl::reset_parameters() {
  down->reset_parameters();
  torch::nn::init::zeros_(up->weight);
}

const std::vector<std::string>& residual_kinds() {
  static const std::vector<std::string> kinds{"none", "plain", "scale", "gated"};
  return kinds;
}

Residual::Residual(const char* who, torch::nn::Module& owner, Options options)
    : who_(who), options_(std::move(options)) {
  check_word(who, "residual", options_.kind, residual_kinds());
  if (options_.context_features == 0) options_.context_features = options_.features;
  if (options_.kind == "scale" || options_.kind == "gated") {
    scale_ = owner.register_parameter("scale", torch::empty({options_.features}));
    torch::nn::init::uniform_(scale_, -kScale, kScale);
  }
  if (options_.kind == "gated") {
    TORCH_CHECK_VALUE(options_.rank > 0, who, ": rank must be positive, but is ", options_.rank);
    gate_ = owner.register_module("gate", LowRank(options_.context_features, options_.rank, options_.features));
  }
}

torch::Tensor Residual::apply(const torch::Tensor& base, const torch::Tensor& mixed, const torch::Tensor& x,
                              const torch::Tensor& context, const torch::Tensor& mask) {
  if (options_.kind == "none") return mixed;
  if (options_.kind == "plain") return base + mixed;
  const auto type = base.scalar_type();  // of the result, under autocast too
  if (!gate_) return base + (options_.dims == 2 ? scale_.view({-1, 1, 1}) : scale_).to(type) * mixed;
  auto c = gate_(context_of(who_, context, x, mask, options_.context_features, options_.dims), scale_);
  if (options_.dims == 2) c = c.movedim(-1, 1);
  return Gate::apply(base, c.to(type), mixed.to(type));
}

void Residual::reset_parameters() {
  if (scale_.defined()) torch::nn::init::uniform_(scale_, -kScale, kScale);
  if (gate_) gate_->reset_parameters();
}

}  // namespace contextpool::nn
