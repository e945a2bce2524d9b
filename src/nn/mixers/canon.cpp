// Canon layers (Allen-Zhu 2025): a short depthwise convolution without bias, with a residual,
//
//   y_i = x_i + sum_k w_k x_(i - left + k)
//
// whose weights start uniform within +-1 / sqrt(taps), as torch starts convolutions, whatever the model does with its
// other parameters. Parameters: weight [features, 1, taps].
#include "contextpool/nn/depthwise.h"
#include "nn/mixers/mixers.h"

namespace contextpool::nn {
namespace {

class CanonImpl : public DepthwiseImpl {
 public:
  using DepthwiseImpl::DepthwiseImpl;
  void finish_initialisation() override { reset_parameters(); }
};

}  // namespace

Mixer make_canon(const MixerOptions& o) {
  TORCH_CHECK_VALUE(o.residual == "plain", "canon: the residual is plain, but was to be \"", o.residual,
                    "\"; depthwise has the others");
  return std::shared_ptr<MixerImpl>(std::make_shared<CanonImpl>(DepthwiseOptions{.features = o.features,
                                                                                 .taps = o.taps,
                                                                                 .causal = o.causal,
                                                                                 .dims = o.dims,
                                                                                 .bias = false,
                                                                                 .residual = o.residual}));
}

}  // namespace contextpool::nn
