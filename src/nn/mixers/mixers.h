// What the mixers' files share: how each is made (src/nn/mixer.cpp has the table), and how inputs are checked.
#pragma once

#include <torch/torch.h>

#include <string>

#include "contextpool/nn/mixer.h"

namespace contextpool::nn {

// A mixer's file defines one of these. The options were checked as far as they concern all kinds, and taps and residual
// have the kind's own values where none were given.
using MakeMixer = Mixer(const MixerOptions& options);
MakeMixer make_none, make_context_pool, make_depthwise, make_canon, make_dynamic;

// The mask of real tokens of x [B, N, features] (dims 1) or [B, features, H, W] (dims 2); undefined where all are.
// Throws for another shape.
torch::Tensor mask_of(const char* who, const torch::Tensor& x, const Padding& padding, int64_t features, int64_t dims);

// x with 0 at padded tokens.
torch::Tensor without_padding(const torch::Tensor& x, const torch::Tensor& mask, int64_t dims);

// The context (x where undefined) with 0 at padded tokens and its features last. Throws unless it is of x's shape, with
// `features` features.
torch::Tensor context_of(const char* who, const torch::Tensor& context, const torch::Tensor& x,
                         const torch::Tensor& mask, int64_t features, int64_t dims);

// The last `tokens` tokens of those that a cache holds as "features", and the `before` tokens before them, zeros where
// the row has none: what taps look at in a step.
torch::Tensor last_tokens(const MixerCache& cache, int64_t tokens, int64_t before);

}  // namespace contextpool::nn
