// The translators by name, and what each costs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "contextpool/models/translator.h"

namespace contextpool::models {

struct NamedTranslator {
  std::string name;
  std::string summary;  // one line for a list
  TranslatorOptions options;
};

// tensor2tensor's sizes nmt-{tiny,small,base,big}, and nmt-multi30k, 4 + 4 layers for the Multi30k recipe. Each also as
// NAME-local (local attention in the lower half of the encoder), NAME-area (area attention in the first two layers of
// encoder, decoder and attention over the source), cp-NAME (ContextPool after every attention) and dw-NAME (a depthwise
// convolution in its place, the control).
const std::vector<NamedTranslator>& translators();

// The model of that name; an error with the nearest name if there is none.
const NamedTranslator& find_translator(std::string_view name);

// Floating-point operations of the forward pass of one pair of sentences, a multiply-add being two. Counted: every
// weight matrix and convolution, attention's scores and sums over the tokens or areas that are seen. Not counted:
// norms, activations, softmax, rotations, biases, look-ups, local attention's bias, the sums of areas.
struct TranslatorCost {
  int64_t parameters = 0;
  double flops = 0;          // without the pooling sum
  double pooling_flops = 0;  // the pooling sum as its formula reads, over all tokens whatever their share of it; with
                             // pairwise weights, their scores too
};
TranslatorCost cost(const TranslatorOptions& options, int64_t source_length, int64_t target_length);

// Parameters that a model of these options has at least: its large matrices. Nothing is built.
double least_parameters(const TranslatorOptions& options);

}  // namespace contextpool::models
