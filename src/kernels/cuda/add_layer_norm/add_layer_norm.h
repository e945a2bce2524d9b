// add_layer_norm on device memory: float32, bfloat16 and float16 rows of whole fours of features, up to 1024 of them.
// Plain pointers, sizes and a stream; nothing here allocates or waits for the device. Everything is contiguous.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/type.h"

namespace contextpool::cuda {

struct AddLayerNorm {
  std::int64_t rows = 0;
  int features = 0;
  float eps = 0;
  Type sum_type = Type::f32, branch_type = Type::f32, normed_type = Type::f32;
  const float* weight = nullptr;  // [features]
  const float* bias = nullptr;
};

// Whether there are kernels for these types and features; x has the type of the sum. Memory must start at 16 bytes.
bool add_layer_norm_fits(const AddLayerNorm& in);

cudaError_t add_layer_norm(const AddLayerNorm& in, const void* x, const void* branch, void* sum, void* normed,
                           float* mean, float* rstd, cudaStream_t stream);

// Bytes of scratch memory for the backward.
std::size_t add_layer_norm_backward_workspace(const AddLayerNorm& in);

// dsum may be null. dx has the sum's type; dbranch the branch's, null where that is the sum's. dweight and dbias
// [features].
cudaError_t add_layer_norm_backward(const AddLayerNorm& in, const void* dsum, const void* dnormed, const void* sum,
                                    const float* mean, const float* rstd, void* dx, void* dbranch, float* dweight,
                                    float* dbias, void* workspace, cudaStream_t stream);

}  // namespace contextpool::cuda
