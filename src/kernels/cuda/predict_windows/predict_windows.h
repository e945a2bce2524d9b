// predict_windows on device memory: float32, bfloat16 and float16. Plain pointers, sizes and a stream; nothing here
// allocates or waits for the device. Everything is contiguous.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/type.h"

namespace contextpool::cuda {

inline constexpr std::size_t kPredictWindowsAlignment = 16;  // bytes, of product and dproduct

// The names of include/contextpool/ops/predict_windows.h.
struct PredictWindows {
  std::int64_t batch = 0, tokens = 0;
  std::int64_t hidden = 0, taps = 0, left = 0;
  std::int64_t channels = 0, sizes = 0;
  Type type = Type::f32;  // of product; not f64
  float size_range = 0, shift = 0, least = 0, span = 1;
  const void* product = nullptr;    // [batch, tokens, taps, hidden]
  const float* bias = nullptr;      // [hidden]
  const float* weight = nullptr;    // [channels, hidden, taps]
  const float* out_bias = nullptr;  // [channels]
};

// Whether the kernels are made for such sizes.
bool has_predict_windows(const PredictWindows& in);

// log_weight [batch, channels - sizes, tokens]; sigma and u [batch, sizes, tokens].
cudaError_t predict_windows(const PredictWindows& in, float* log_weight, float* sigma, float* u, cudaStream_t stream);

// Bytes of scratch memory for the backward.
std::size_t predict_windows_backward_workspace(const PredictWindows& in);

// sums: the gradients of weight, bias and out_bias, one after the other.
cudaError_t predict_windows_backward(const PredictWindows& in, const float* u, const float* dlog_weight,
                                     const float* dsigma, void* dproduct, float* sums, void* workspace,
                                     cudaStream_t stream);

}  // namespace contextpool::cuda
