// The mixer that leaves x as it is.
#include "nn/mixers/mixers.h"

namespace contextpool::nn {
namespace {

class NoneImpl : public MixerImpl {
 public:
  torch::Tensor forward(const torch::Tensor& x, const Padding&, const torch::Tensor&) override { return x; }
  torch::Tensor step(const torch::Tensor& x, MixerCache&, const Padding&, const torch::Tensor&) override { return x; }
};

}  // namespace

Mixer make_none(const MixerOptions&) { return std::shared_ptr<MixerImpl>(std::make_shared<NoneImpl>()); }

}  // namespace contextpool::nn
