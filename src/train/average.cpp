#include "contextpool/train/average.h"

#include <algorithm>

namespace contextpool::train {
namespace {

constexpr double kStart = 10;  // of the ramp of d

}  // namespace

Average::Average(const io::NamedTensors& model, double decay) : model_(model), decay_(decay) {
  TORCH_CHECK_VALUE(decay > 0 && decay < 1, "contextpool: the average's decay is ", decay, ", expected 0 < decay < 1");
  for (const auto& [name, p] : model_) average_.emplace_back(name, p.detach().clone());
}

void Average::update(std::int64_t t) {
  const torch::NoGradGuard no_grad;
  const auto n = static_cast<double>(t);
  const auto d = std::min(decay_, (1 + n) / (kStart + n));
  std::vector<torch::Tensor> average, now;
  for (std::size_t i = 0; i < model_.size(); ++i) {
    if (!model_[i].second.is_floating_point()) {
      average_[i].second.copy_(model_[i].second);
      continue;
    }
    average.push_back(average_[i].second);
    now.push_back(model_[i].second);
  }
  at::_foreach_lerp_(average, now, 1 - d);
}

AverageInPlace::AverageInPlace(Average& average) : average_(average) {
  for (std::size_t i = 0; i < average_.model_.size(); ++i) {
    auto& p = average_.model_[i].second;
    kept_.push_back(p.tensor_data());
    p.set_data(average_.average_[i].second);
  }
}

AverageInPlace::~AverageInPlace() {
  for (std::size_t i = 0; i < kept_.size(); ++i) average_.model_[i].second.set_data(kept_[i]);
}

}  // namespace contextpool::train
