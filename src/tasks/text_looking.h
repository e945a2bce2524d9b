// The windows of a model of text on one line: of a language model, and of a translator's encoder.
#pragma once

#include "contextpool/eval/looking.h"
#include "contextpool/tasks/registry.h"

namespace contextpool::tasks {

eval::Looking look_at_text(const LookRequest& request);
eval::Looking look_at_source(const LookRequest& request);

}  // namespace contextpool::tasks
