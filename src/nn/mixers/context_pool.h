// ContextPool as a mixer. With P(x) = ContextPool1d(x) or ContextPool2d(x), T(x) a short depthwise convolution without
// bias where there are taps, else 0, and c as `residual` says (residual.h):
//
//   none  T(x) + P(x)      plain  x + T(x) + P(x)      scale, gated  x + T(x) + c P(x)
//
// Parameters: those of ContextPool by their own names (predictor.*, theta, phi), then scale, gate.{down,up}.weight and
// taps.weight.
#pragma once

#include <memory>

#include "contextpool/nn/depthwise.h"
#include "contextpool/nn/mixer.h"
#include "nn/mixers/residual.h"

namespace contextpool::nn {

// What rows and maps have in common. Pool: ContextPool1d or ContextPool2d.
template <typename Pool>
class ContextPoolMixerImpl : public MixerImpl {
 public:
  ContextPoolMixerImpl(const MixerOptions& options, Pool pool);

  torch::Tensor forward(const torch::Tensor& x, const Padding& padding = {},
                        const torch::Tensor& context = {}) override;
  std::pair<torch::Tensor, Windows> forward_with_windows(const torch::Tensor& x, const Padding& padding = {},
                                                         const torch::Tensor& context = {}) override;
  torch::Tensor step(const torch::Tensor& x, MixerCache& cache, const Padding& padding = {},
                     const torch::Tensor& context = {}) override;
  void reset_parameters() override;
  void finish_initialisation() override;

  // Its layers are registered here; the module itself is not, so that its parameters keep their names.
  Pool pool() const { return pool_; }

 private:
  // T(x) + P(x) and so on, of x with 0 at padded tokens; beside: what taps_ gives, or undefined.
  torch::Tensor combine(const torch::Tensor& real, const torch::Tensor& pooled, const torch::Tensor& beside,
                        const torch::Tensor& context, const torch::Tensor& mask);

  int64_t features_, dims_;
  bool plain_;   // P(x) and nothing else: the paper's
  bool adds_x_;  // has a residual; taps_, where there are some, give x + T(x) then
  Pool pool_;
  std::unique_ptr<Residual> residual_;
  Depthwise taps_{nullptr};
};

extern template class ContextPoolMixerImpl<ContextPool1d>;
extern template class ContextPoolMixerImpl<ContextPool2d>;

}  // namespace contextpool::nn
