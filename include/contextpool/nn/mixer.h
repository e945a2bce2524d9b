// Local mixers: what stands in a place of a block and lets each token see some of those around it, without changing the
// shape. One interface for all, so that a model takes a mixer by its name and never asks which it is:
//
//   none           x
//   context_pool   CP(x), the adaptive windows of nn/context_pool.h
//   depthwise      DW(x), a depthwise convolution with bias (nn/depthwise.h)
//   canon          x + DW(x), a short one without bias that starts as torch starts convolutions
//   dynamic        x + sum_k (w_k + v_k(h)) x_(i - left + k), whose taps depend on the context h as well
//
// and, for depthwise and context_pool, as `residual` says, with M(x) the above, s [features] and h the context:
//
//   none  M(x)      plain  x + M(x)      scale  x + s M(x)      gated  x + (s + up(down(h))) M(x)
//
// context_pool with taps has a short depthwise convolution T beside it: x + T(x) + s CP(x) and so on. Rows are
// [B, N, features], causal or centred; maps are [B, features, H, W], centred. docs/mixers.md compares them.
//
// A new mixer is one file in src/nn/mixers/ and one line in the table of src/nn/mixer.cpp (and the same in Python).
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextpool/nn/cache.h"
#include "contextpool/nn/context_pool.h"
#include "contextpool/nn/padding.h"

namespace contextpool::nn {

struct MixerOptions {
  std::string kind = "none";  // one of mixer_kinds()
  int64_t features = 0;       // D of rows [B, N, D], C of maps [B, C, H, W]
  bool causal = false;        // nothing that comes after a token reaches it; rows only
  int64_t dims = 1;           // 1: rows, 2: maps
  // Of the convolutions; of maps the side of the square. 0, the kind's own: depthwise 15, canon and dynamic 4 (3 if
  // centred), 3 for maps; context_pool has none beside it.
  int64_t taps = 0;
  // none, plain, scale or gated; empty, the kind's own: plain for canon and dynamic, which have no other, else none.
  std::string residual = {};
  int64_t rank = 15;  // of what depends on the context: in dynamic, and in gated
  int64_t heads = 0;  // of dynamic: slices of the features that share v_k; 0: a low-rank v_k for each channel
  int64_t context_features = 0;  // of the context; 0: features
  ContextPoolOptions pool = {};  // of context_pool; features and causal are set from those above

  // Options for maps: pool has the defaults of ContextPool2dOptions.
  static MixerOptions for_maps(const std::string& kind, int64_t features);
};

class MixerImpl : public torch::nn::Module {
 public:
  // x [B, N, D] or [B, C, H, W] -> the same shape. What padded tokens hold reaches neither the others nor any gradient.
  // context: what coefficients that depend on the input are made of, of x's shape but for the features: in a block, its
  // normed input. Undefined: x itself. Mixers without such coefficients do not look at it.
  virtual torch::Tensor forward(const torch::Tensor& x, const Padding& padding = {},
                                const torch::Tensor& context = {}) = 0;
  // The same, and what a ContextPool predicted; undefined tensors from other mixers.
  virtual std::pair<torch::Tensor, Windows> forward_with_windows(const torch::Tensor& x, const Padding& padding = {},
                                                                 const torch::Tensor& context = {});

  // The next tokens [B, T, D] of causal rows, which then are in the cache too: equals the last rows of forward over all
  // of them. padding and context are those of the new tokens; the cache remembers the padding.
  virtual torch::Tensor step(const torch::Tensor& x, MixerCache& cache, const Padding& padding = {},
                             const torch::Tensor& context = {}) = 0;

  // Draws every parameter anew by the mixer's own rule.
  virtual void reset_parameters() {}
  // For a model that has drawn all of its parameters by a rule of its own, after that: restores the parameters whose
  // start is part of the mixer. ContextPool's sizes; canon's taps; dynamic's taps, with the part that depends on the
  // context at 0; the coefficients of a residual. The weights of depthwise and of the predictor stay as drawn.
  virtual void finish_initialisation() {}
};
TORCH_MODULE(Mixer);

// The mixer of these options; c10::ValueError with the reason where they cannot be built. "none" has no parameters and
// returns x.
Mixer make_mixer(const MixerOptions& options);

// The words for MixerOptions::kind.
const std::vector<std::string>& mixer_kinds();

// A lower bound of its number of parameters, for finding out before it is built that no memory could hold it. Of
// options that cannot be built it means nothing.
double least_parameters(const MixerOptions& options);

// "A=canon,C=canon,O=context_pool" as {A: canon, C: canon, O: context_pool}; "AC=canon" is short for the first two.
// `places` are the letters that there are, `who` opens the messages. Places that are not named, or are given "none",
// are not in the map.
std::map<char, std::string> parse_places(std::string_view who, std::string_view text, std::string_view places);

}  // namespace contextpool::nn
