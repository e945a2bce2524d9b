#include "nn/mixers/residual.h"

#include "base/words.h"
#include "nn/mixers/mixers.h"

namespace contextpool::nn {
namespace {

constexpr double kScale = 0.5;  // at first, of either sign

}  // namespace

LowRankImpl::LowRankImpl(int64_t in, int64_t rank, int64_t out) {
  down = register_module("down", Linear(torch::nn::LinearOptions(in, rank).bias(false)));
  up = register_module("up", Linear(torch::nn::LinearOptions(rank, out).bias(false)));
  torch::nn::init::zeros_(up->weight);
}

torch::Tensor LowRankImpl::forward(const torch::Tensor& h) { return up(down(h)); }

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

torch::Tensor Residual::apply(const torch::Tensor& x, const torch::Tensor& mixed, const torch::Tensor& context,
                              const torch::Tensor& mask) {
  if (options_.kind == "none") return mixed;
  if (options_.kind == "plain") return x + mixed;
  auto coefficient = scale_;
  if (gate_) {
    coefficient = coefficient + gate_(context_of(who_, context, x, mask, options_.context_features, options_.dims));
  }
  if (options_.dims == 2) coefficient = gate_ ? coefficient.movedim(-1, 1) : coefficient.view({-1, 1, 1});
  return x + coefficient.to(x.scalar_type()) * mixed;  // of the dtype of x under autocast too
}

void Residual::reset_parameters() {
  if (scale_.defined()) torch::nn::init::uniform_(scale_, -kScale, kScale);
  if (gate_) gate_->reset_parameters();
}

}  // namespace contextpool::nn
