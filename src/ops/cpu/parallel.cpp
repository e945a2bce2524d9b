#include "ops/cpu/parallel.h"

#include <ATen/Parallel.h>

namespace contextpool {

cpu::Parallel torch_threads() {
  return {at::get_num_threads(),
          [](int64_t n, int64_t grain, const auto& body) { at::parallel_for(0, n, grain, body); }};
}

}  // namespace contextpool
