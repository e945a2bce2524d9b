#include "contextpool/runtime/casts.h"

#include <ATen/autocast_mode.h>

namespace contextpool::runtime {

KeepCasts::KeepCasts() { at::autocast::increment_nesting(); }

KeepCasts::~KeepCasts() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

}  // namespace contextpool::runtime
