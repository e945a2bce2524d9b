// A warp has a row; its lanes take turns with pieces of 16 bytes (or single classes, where rows do not start at 16
// bytes). The forward reads the row once: each lane keeps its maximum and the sum of exponentials below it, which is
// scaled when the maximum grows.
#include "kernels/cuda/cross_entropy/cross_entropy.h"

#include "kernels/cuda/elementwise/launch.cuh"
#include "kernels/cuda/elementwise/vector.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;

__device__ inline float infinity() { return __int_as_float(0x7f800000); }
__device__ inline float nan_value() { return __int_as_float(0x7fc00000); }

// exp(a - b) for a <= b, where both may be -infinity: then nothing was there to be scaled.
__device__ inline float scaled(float a, float b) { return a == -infinity() ? 0.f : expf(a - b); }

template <typename T, int kPiece>
__global__ void __launch_bounds__(kThreads) forward_kernel(const CrossEntropy in, float* loss, float* log_sum) {
  const int lane = threadIdx.x % kWarp;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= in.rows) return;
  const T* const logits = static_cast<const T*>(in.logits) + row * in.classes;
  float most = -infinity(), sum = 0;
  for (std::int64_t c = lane * kPiece; c < in.classes; c += kWarp * kPiece) {
    const auto values = load<T, kPiece>(logits + c);
    float here = most;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) here = fmaxf(here, widen(values.at[i]));
    sum *= scaled(most, here);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      const float z = widen(values.at[i]);
      sum += z == -infinity() ? 0.f : expf(z - here);  // NaN stays NaN
    }
    most = here;
  }
  float top = most;
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
  sum = warp_sum(sum * scaled(most, top));
  if (lane != 0) return;
  const float all = top + logf(sum);
  const std::int64_t target = in.target[row];
  log_sum[row] = all;
  if (target == in.ignored) {
    loss[row] = 0;
  } else {
    loss[row] = target >= 0 && target < in.classes ? all - widen(logits[target]) : nan_value();
  }
}

template <typename T, int kPiece>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const CrossEntropy in, const float* grad, const float* log_sum, T* dlogits) {
  const int lane = threadIdx.x % kWarp;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= in.rows) return;
  const T* const logits = static_cast<const T*>(in.logits) + row * in.classes;
  T* const to = dlogits + row * in.classes;
  const std::int64_t target = in.target[row];
  const bool ignored = target == in.ignored;
  const float all = log_sum[row], g = target >= 0 && target < in.classes ? grad[row] : nan_value();
  for (std::int64_t c = lane * kPiece; c < in.classes; c += kWarp * kPiece) {
    const auto values = load<T, kPiece>(logits + c);
    Vector<T, kPiece> result;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      const float slope = expf(widen(values.at[i]) - all) - (c + i == target ? 1.f : 0.f);
      result.at[i] = narrow<T>(ignored ? 0.f : g * slope);
    }
    store<T, kPiece>(to + c, result);
  }
}

unsigned blocks_of(const CrossEntropy& in) { return static_cast<unsigned>((in.rows + kWarps - 1) / kWarps); }

struct Forward {
  const CrossEntropy& in;
  float *loss, *log_sum;
  cudaStream_t stream;

  bool at_16_bytes() const { return aligned(in.logits, 16); }
  template <typename T, int kPiece>
  cudaError_t run() const {
    return launch_kernel(forward_kernel<T, kPiece>, blocks_of(in), kThreads, stream, in, loss, log_sum);
  }
};
struct Backward {
  const CrossEntropy& in;
  const float *grad, *log_sum;
  void* dlogits;
  cudaStream_t stream;

  bool at_16_bytes() const { return aligned(in.logits, 16) && aligned(dlogits, 16); }
  template <typename T, int kPiece>
  cudaError_t run() const {
    return launch_kernel(backward_kernel<T, kPiece>, blocks_of(in), kThreads, stream, in, grad, log_sum,
                         static_cast<T*>(dlogits));
  }
};

template <typename T, typename Work>
cudaError_t in_pieces(const Work& work) {
  const bool whole = work.in.classes % kWhole<T> == 0 && work.at_16_bytes();
  return whole ? work.template run<T, kWhole<T>>() : work.template run<T, 1>();
}

template <typename Work>
cudaError_t with_type(const Work& work) {
  if (work.in.rows >= (std::int64_t{1} << 31)) return cudaErrorInvalidValue;
  switch (work.in.type) {
    case Type::f32: return in_pieces<float>(work);
    case Type::bf16: return in_pieces<__nv_bfloat16>(work);
    case Type::f16: return in_pieces<__half>(work);
    case Type::f64: break;
  }
  return cudaErrorNotSupported;
}

}  // namespace

cudaError_t cross_entropy(const CrossEntropy& in, float* loss, float* log_sum, cudaStream_t stream) {
  return with_type(Forward{in, loss, log_sum, stream});
}

cudaError_t cross_entropy_backward(const CrossEntropy& in, const float* grad, const float* log_sum, void* dlogits,
                                   cudaStream_t stream) {
  return with_type(Backward{in, grad, log_sum, dlogits, stream});
}

}  // namespace contextpool::cuda
