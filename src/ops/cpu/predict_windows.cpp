// predict_windows on CPU tensors: PyTorch's operators, one after the other.
#include "ops/predict_windows.h"

#include <torch/library.h>

namespace contextpool {

TORCH_LIBRARY_IMPL(contextpool, CPU, m) {
  m.impl("predict_windows", predict_windows_by_operators);
  m.impl("_predict_windows_backward", predict_windows_backward_by_operators);
}

}  // namespace contextpool
