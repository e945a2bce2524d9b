// cross_entropy on device memory: float32, bfloat16 and float16 logits. Plain pointers, sizes and a stream; nothing
// here allocates or waits for the device. Everything is contiguous.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/type.h"

namespace contextpool::cuda {

struct CrossEntropy {
  std::int64_t rows = 0;
  std::int64_t classes = 0;
  std::int64_t ignored = 0;  // the target of a row without a loss
  Type type = Type::f32;     // not f64
  const void* logits = nullptr;
  const std::int64_t* target = nullptr;
};

// loss and log_sum [rows].
cudaError_t cross_entropy(const CrossEntropy& in, float* loss, float* log_sum, cudaStream_t stream);

// dlogits in the type of the logits.
cudaError_t cross_entropy_backward(const CrossEntropy& in, const float* grad, const float* log_sum, void* dlogits,
                                   cudaStream_t stream);

}  // namespace contextpool::cuda
