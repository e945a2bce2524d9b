// BLEU and chrF of a translator, or of translations in a file, on a test set: what `contextpool eval` does.
#pragma once

#include "contextpool/tasks/registry.h"

namespace contextpool::tasks {

OptionList translation_eval_options();
void check_translation_eval(const EvalRequest& request);
EvalResult evaluate_translation(const EvalRequest& request);

}  // namespace contextpool::tasks
