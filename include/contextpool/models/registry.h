// The named models, and what each costs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "contextpool/models/language_model.h"

namespace contextpool::models {

struct NamedModel {
  std::string name;
  std::string summary;  // one line for a list
  LanguageModelOptions options;
};

// transformer-{4,6,8,12}, cp-transformer-{4,6,11,12,14}, dw-transformer-6, [cp-]longformer-12, [cp-]adaptive-span-12,
// and the tiny and small ones of tests and demo.
const std::vector<NamedModel>& language_models();

// The model of that name; an error with the nearest name if there is none.
const NamedModel& find_language_model(std::string_view name);

// Floating-point operations of one token's forward pass in a row of `length` tokens, a multiply-add being two. Counted:
// every weight matrix and convolution once a token, attention's scores and sums over the tokens that a token sees on
// average: (length + 1) / 2, or those in its window, or in an adaptive span at its limit. Not counted: norms,
// activations, softmax, rotations, biases, the embedding's look-up.
struct Cost {
  int64_t parameters = 0;
  double flops = 0;          // without the pooling sum
  double pooling_flops = 0;  // the pooling sum as its formula reads, over all tokens up to the target, whatever their
                             // share of it; with pairwise weights, their scores too
};
Cost cost(const LanguageModelOptions& options, int64_t length);

}  // namespace contextpool::models
