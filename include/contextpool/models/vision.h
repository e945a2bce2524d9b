// What the families of vision models share: images in, logits out, what a model costs, and which of its parameters have
// no weight decay.
//
// Images are floating [B, 3, H, W], normalised, in any memory format; logits [B, classes]. In each place where a mixer
// can stand, on a map [B, C, H, W]:
//
//   none  x      context_pool  CP(x)      depthwise  DW(x), 3 x 3      with residual plain  x + the above
//
// and any other kind that nn/mixer.h knows for maps.
#pragma once

#include <torch/torch.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextpool/nn/context_pool.h"

namespace contextpool::models {

// Of the forward pass of one image, a multiply-add being one. Counted: every convolution and matrix product with
// weights, attention's scores and sums. Not counted: norms, activations, softmax, biases, additions.
struct VisionCost {
  int64_t parameters = 0;
  double macs = 0;          // without the pooling sum
  double pooling_macs = 0;  // the pooling sum as its formula reads, over all pixels of the map for each target,
                            // whatever their share of it; with pairwise weights, their scores too
};

// Whether training leaves a parameter without weight decay: those of one dimension (biases, norms, scales), the class
// and distillation tokens, position tables and Swin's relative position tables. `name` is the parameter's whole name.
bool no_decay(std::string_view name, const torch::Tensor& parameter);

// The logits and what each ContextPool predicted, in the order of the layers, on its map (also where windows = "row").
// Without a ContextPool the list is empty.
using LogitsAndWindows = std::pair<torch::Tensor, std::vector<nn::Windows>>;

// What every vision model is, for those that do not ask which.
class ImageClassifier : public torch::nn::Module {
 public:
  // In training mode a distilled model gives [B, 2, classes], the logits of its two heads.
  virtual torch::Tensor forward(const torch::Tensor& images) = 0;
  virtual LogitsAndWindows forward_with_windows(const torch::Tensor& images) = 0;
};

// Calls f(name, value, help) for the options of mixers that all families have.
template <typename Options, typename F>
void for_each_mixer_option(Options& options, F f) {
  f("mixer", options.mixer, "none, context_pool, depthwise, canon or dynamic");
  f("mixer_residual", options.mixer_residual, "of the mixer: none, plain, scale or gated; empty: the mixer's own");
  f("mixer_taps", options.mixer_taps,
    "side of the mixer's convolution; 0: its own, 3 x 3, and none beside ContextPool");
  f("mixer_rank", options.mixer_rank, "of what depends on the context, in gated residuals and in dynamic");
  f("mixer_heads", options.mixer_heads,
    "of dynamic: slices of the features that share a kernel; 0: a low rank instead");
  nn::for_each_pool_option(options.pool, f);
}

}  // namespace contextpool::models
