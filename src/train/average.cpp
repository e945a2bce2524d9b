#include "contextpool/train/average.h"

#include <algorithm>

namespace contextpool::train {
namespace {

constexpr double kStart = 10;  // of the ramp of d

}  // namespace

Average::Average(const io::NamedTensors& model, double decay) : model_(model), decay_(decay) {
  TORCH_CHECK_VALUE(decay > 0 && decay < 1, "contextpool: the average's decay is ", decay, ", expected 0 < decay < 1");
  TORCH_CHECK_VALUE(!model_.empty(), "contextpool: an average of nothing");
  for (const auto& [name, p] : model_) average_.emplace_back(name, p.detach().clone());
  t_ = torch::zeros({}, torch::dtype(torch::kDouble).device(model_.front().second.device()));
}

void Average::update(const torch::Tensor& skip) {
  const torch::NoGradGuard no_grad;
  auto share = 1 - ((t_ + 1) / (t_ + kStart)).clamp_max(decay_);  // 1 - d
  if (skip.defined()) share = share * (1 - skip);
  t_ += skip.defined() ? 1 - skip : torch::ones_like(t_);
  std::vector<torch::Tensor> average, now;
  for (std::size_t i = 0; i < model_.size(); ++i) {
    if (!model_[i].second.is_floating_point()) {
      auto& count = average_[i].second;
      count.copy_(skip.defined() ? torch::where(skip > 0, count, model_[i].second) : model_[i].second);
      continue;
    }
    average.push_back(average_[i].second);
    now.push_back(model_[i].second);
  }
  std::vector<torch::Tensor> shares;
  for (const auto& a : average) {
    share = share.to(a.scalar_type());  // at most once: all are float32
    shares.push_back(share);
  }
  at::_foreach_lerp_(average, now, shares);
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
