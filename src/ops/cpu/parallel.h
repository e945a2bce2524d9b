// The threads of the process, as the kernels see them: PyTorch's pool (parallel.cpp).
#pragma once

#include "kernels/cpu/parallel.h"

namespace contextpool {

cpu::Parallel torch_threads();

}  // namespace contextpool
