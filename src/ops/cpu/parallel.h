// PyTorch's thread pool, as the kernels see it.
#pragma once

#include <ATen/Parallel.h>

#include "kernels/cpu/parallel.h"

namespace contextpool {

inline cpu::Parallel torch_threads() {
  return {at::get_num_threads(),
          [](int64_t n, int64_t grain, const auto& body) { at::parallel_for(0, n, grain, body); }};
}

}  // namespace contextpool
