// The language models by name, what each costs, and their family.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "contextpool/models/family.h"
#include "contextpool/models/language_model.h"

namespace contextpool::models {

using NamedLanguageModel = Named<LanguageModelOptions>;

// transformer-{4,6,8,12}, cp-transformer-{4,6,11,12,14}, dw-transformer-6, canon-transformer-{6,12},
// gated-cp-transformer-{6,12}, [cp-]longformer-12, [cp-]adaptive-span-12, and the tiny and small ones of tests and
// demo.
const std::vector<NamedLanguageModel>& language_models();

// The model of that name; an error with the nearest name if there is none.
const NamedLanguageModel& find_language_model(std::string_view name);

// Of one token's forward pass in a row of `length` tokens. Attention is counted over the tokens that a token sees on
// average: (length + 1) / 2, or those in its window, or in an adaptive span at its limit. The pooling sum is counted
// over all tokens up to the target; with pairwise weights, their scores too.
Cost cost(const LanguageModelOptions& options, int64_t length);

// Parameters that a model of these options has at least: its large matrices. Nothing is built.
double least_parameters(const LanguageModelOptions& options);

std::unique_ptr<Family> language_model_family();

}  // namespace contextpool::models
