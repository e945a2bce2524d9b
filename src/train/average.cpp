#include "contextpool/train/average.h"

#include <algorithm>

namespace contextpool::train {
namespace {

constexpr double kStart = 10;  // of the ramp of d

std::vector<torch::Tensor> values(const io::NamedTensors& tensors) {
  std::vector<torch::Tensor> all;
  for (const auto& [name, t] : tensors) all.push_back(t);
  return all;
}

}  // namespace

Average::Average(const io::NamedTensors& parameters, double decay) : parameters_(parameters), decay_(decay) {
  TORCH_CHECK_VALUE(decay > 0 && decay < 1, "contextpool: the average's decay is ", decay, ", expected 0 < decay < 1");
  for (const auto& [name, p] : parameters_) average_.emplace_back(name, p.detach().clone());
}

void Average::update(std::int64_t t) {
  const torch::NoGradGuard no_grad;
  const auto n = static_cast<double>(t);
  const auto d = std::min(decay_, (1 + n) / (kStart + n));
  const auto average = values(average_);
  at::_foreach_lerp_(average, values(parameters_), 1 - d);
}

AverageInPlace::AverageInPlace(Average& average) : average_(average) {
  for (std::size_t i = 0; i < average_.parameters_.size(); ++i) {
    auto& p = average_.parameters_[i].second;
    kept_.push_back(p.tensor_data());
    p.set_data(average_.average_[i].second);
  }
}

AverageInPlace::~AverageInPlace() {
  for (std::size_t i = 0; i < kept_.size(); ++i) average_.parameters_[i].second.set_data(kept_[i]);
}

}  // namespace contextpool::train
