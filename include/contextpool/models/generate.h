// Text from a language model, one symbol at a time. Each symbol is drawn from softmax(logits / temperature), cut to the
// top_k largest, by a number that is a pure function of (seed, how many were drawn before): the same seed gives the
// same text, whichever way the logits were computed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "contextpool/models/language_model.h"

namespace contextpool::models {

struct GenerateOptions {
  int64_t tokens = 256;    // how many to draw
  double temperature = 1;  // 0: always the likeliest
  int64_t top_k = 0;       // 0: all
  uint64_t seed = 0;
  bool cached = true;  // false: every symbol from a forward pass over the whole text, slow; for checking
};

// Throws at the first value that cannot be.
void validate(const GenerateOptions& options);

// The drawn symbols, without the prompt, which holds at least one. on_token, where given, sees each as it is drawn; if
// it returns false, that one is the last. A long prompt is read in parts; on_prompt sees how many of its tokens were.
std::vector<int64_t> generate(LanguageModel& model, const std::vector<int64_t>& prompt, const GenerateOptions& options,
                              const std::function<bool(int64_t)>& on_token = {},
                              const std::function<void(int64_t, int64_t)>& on_prompt = {});

// One symbol from logits [vocabulary]; `index` counts the symbols drawn before.
int64_t sample(const torch::Tensor& logits, const GenerateOptions& options, uint64_t index);

}  // namespace contextpool::models
