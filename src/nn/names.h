// Forwards to base/words.h under the names that nn used.
#pragma once

#include "base/words.h"

namespace contextpool::nn {
using contextpool::check_word;
using contextpool::did_you_mean;
}  // namespace contextpool::nn
