// Bits per character of a text by overlapping windows: the first window of `window` tokens counts whole; each next one
// is `step` tokens further on and only its last `step` predictions count, so that each has at least window - step
// tokens before it. Every token of the split but the very first is predicted once.
#pragma once

#include <cstdint>
#include <functional>

#include "contextpool/data/text.h"
#include "contextpool/models/language_model.h"

namespace contextpool::eval {

struct WindowOptions {
  std::int64_t window = 32768;
  std::int64_t step = 512;
  std::int64_t batch = 1;   // windows at once
  std::int64_t tokens = 0;  // of the split, from its start on; 0: all
  bool bfloat16 = false;
};

struct Score {
  std::int64_t tokens = 0;  // predicted
  double nats = 0;          // per token
  double bits() const;      // per token: bits per character
};

// The model's mode (training or not) is restored. `progress` sees how many predictions have counted, of
// how many, from 0 on.
Score evaluate(models::LanguageModel& model, const data::Text& text, data::Split split, const WindowOptions& options,
               const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace contextpool::eval
