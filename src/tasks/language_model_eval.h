// `contextpool eval` of a language model: bits per character of a split of a text by overlapping windows.
#pragma once

#include "contextpool/tasks/registry.h"

namespace contextpool::tasks {

// Metadata: the tokens of the rows that the model was trained on last.
constexpr const char* kTrainedLengthKey = "contextpool.length";

OptionList language_model_eval_options();
void check_language_model_eval(const EvalRequest& request);
EvalResult evaluate_language_model(const EvalRequest& request);

}  // namespace contextpool::tasks
