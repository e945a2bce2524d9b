// Weights in bfloat16. Autocast (device.h) casts a weight when it is first used and keeps the copy until the outermost
// Autocast ends. While a KeepCasts lives, copies are kept for the next Autocast too: micro-batches of one step share
// them. Not over a change of the weights.
#pragma once

namespace contextpool::runtime {

class KeepCasts {
 public:
  KeepCasts();
  ~KeepCasts();
  KeepCasts(const KeepCasts&) = delete;
  KeepCasts& operator=(const KeepCasts&) = delete;
};

}  // namespace contextpool::runtime
