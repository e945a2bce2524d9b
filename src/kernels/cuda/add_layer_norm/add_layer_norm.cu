// A warp has a row, in registers: lane l has features 4 (32 p + l) to 4 (32 p + l) + 3 of its pieces p. The backward
// keeps its features' part of dweight and dbias over the rows that it meets; blocks are as many as the rows ask for,
// whatever the device, so that sums have one order.
#include "kernels/cuda/add_layer_norm/add_layer_norm.h"

#include <algorithm>

#include "kernels/cuda/elementwise/columns.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp, kFour = 4;
constexpr int kMostPieces = 8;
constexpr std::int64_t kMostBlocks = 512;  // of the backward

struct Four {
  float at[kFour];
};

template <typename T>
__device__ Four load_four(const T* from) {
  const auto values = load<T, kFour>(from);
  Four floats;
#pragma unroll
  for (int i = 0; i < kFour; ++i) floats.at[i] = widen(values.at[i]);
  return floats;
}
template <typename T>
__device__ void store_four(T* to, const Four& floats) {
  Vector<T, kFour> values;
#pragma unroll
  for (int i = 0; i < kFour; ++i) values.at[i] = narrow<T>(floats.at[i]);
  store<T, kFour>(to, values);
}

template <typename Sum, typename Branch, typename Normed, int kPieces>
__global__ void __launch_bounds__(kThreads) forward_kernel(const AddLayerNorm in, const Sum* x, const Branch* branch,
                                                           Sum* sum, Normed* normed, float* mean, float* rstd) {
  const int lane = threadIdx.x % kWarp;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= in.rows) return;
  const std::int64_t first = row * in.features;
  Four a[kPieces], b[kPieces];
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {  // all loads before the first use
    const int c = (p * kWarp + lane) * kFour;
    if (c < in.features) {
      a[p] = load_four(x + first + c);
      b[p] = load_four(branch + first + c);
    } else {
      a[p] = b[p] = Four{};
    }
  }
  float total = 0;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      a[p].at[i] = widen(narrow<Sum>(a[p].at[i] + b[p].at[i]));
      total += a[p].at[i];
    }
  }
  const float centre = warp_sum(total) / static_cast<float>(in.features);
  float squares = 0;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    if ((p * kWarp + lane) * kFour < in.features) {
#pragma unroll
      for (int i = 0; i < kFour; ++i) squares += (a[p].at[i] - centre) * (a[p].at[i] - centre);
    }
  }
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(in.features) + in.eps);
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int c = (p * kWarp + lane) * kFour;
    if (c >= in.features) continue;
    store_four(sum + first + c, a[p]);
    const Four w = load_four(in.weight + c), shift = load_four(in.bias + c);
    Four h;
#pragma unroll
    for (int i = 0; i < kFour; ++i) h.at[i] = (a[p].at[i] - centre) * scale * w.at[i] + shift.at[i];
    store_four(normed + first + c, h);
  }
  if (lane == 0) {
    mean[row] = centre;
    rstd[row] = scale;
  }
}

// parts [gridDim.x, 2, features]: dweight, then dbias.
template <typename Sum, typename Branch, typename Normed, int kPieces>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const AddLayerNorm in, const Sum* dsum, const Normed* dnormed, const Sum* sum, const float* mean,
                    const float* rstd, Sum* dx, Branch* dbranch, float* parts) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float share = 1.f / static_cast<float>(in.features);
  Four dweight[kPieces], dbias[kPieces];
#pragma unroll
  for (int p = 0; p < kPieces; ++p) dweight[p] = dbias[p] = Four{};
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp; row < in.rows;
       row += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const std::int64_t first = row * in.features;
    const float centre = mean[row], scale = rstd[row];
    Four x[kPieces], g[kPieces];
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int c = (p * kWarp + lane) * kFour;
      if (c < in.features) {
        x[p] = load_four(sum + first + c);
        g[p] = load_four(dnormed + first + c);
      } else {
        x[p] = g[p] = Four{};
      }
    }
    float plain = 0, along = 0;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int c = (p * kWarp + lane) * kFour;
      if (c >= in.features) continue;
      const Four w = load_four(in.weight + c);
#pragma unroll
      for (int i = 0; i < kFour; ++i) {
        x[p].at[i] = (x[p].at[i] - centre) * scale;
        dweight[p].at[i] += g[p].at[i] * x[p].at[i];
        dbias[p].at[i] += g[p].at[i];
        g[p].at[i] *= w.at[i];
        plain += g[p].at[i];
        along += g[p].at[i] * x[p].at[i];
      }
    }
    plain = warp_sum(plain) * share;
    along = warp_sum(along) * share;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int c = (p * kWarp + lane) * kFour;
      if (c >= in.features) continue;
      Four d = dsum == nullptr ? Four{} : load_four(dsum + first + c);
#pragma unroll
      for (int i = 0; i < kFour; ++i) d.at[i] += scale * (g[p].at[i] - plain - x[p].at[i] * along);
      store_four(dx + first + c, d);
      if (dbranch != nullptr) store_four(dbranch + first + c, d);
    }
  }
  // The warps of a block, one after the other.
  __shared__ float shared[2 * kPieces * kWarp * kFour];  // [2, features]
  for (int turn = 0; turn < kWarps; ++turn) {
    if (turn == warp) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int c = (p * kWarp + lane) * kFour;
        if (c >= in.features) continue;
#pragma unroll
        for (int i = 0; i < kFour; ++i) {
          shared[c + i] = dweight[p].at[i] + (turn == 0 ? 0.f : shared[c + i]);
          shared[in.features + c + i] = dbias[p].at[i] + (turn == 0 ? 0.f : shared[in.features + c + i]);
        }
      }
    }
    __syncthreads();
  }
  for (int c = threadIdx.x; c < 2 * in.features; c += kThreads) {
    parts[static_cast<std::int64_t>(blockIdx.x) * 2 * in.features + c] = shared[c];
  }
}

std::int64_t backward_blocks(const AddLayerNorm& in) { return std::min(kMostBlocks, (in.rows + kWarps - 1) / kWarps); }

// What is computed, for one set of types and one number of pieces.
struct Forward {
  const AddLayerNorm& in;
  const void *x, *branch;
  void *sum, *normed;
  float *mean, *rstd;
  cudaStream_t stream;

  template <typename Sum, typename Branch, typename Normed, int kPieces>
  cudaError_t run() const {
    const auto blocks = static_cast<unsigned>((in.rows + kWarps - 1) / kWarps);
    return launch_kernel(forward_kernel<Sum, Branch, Normed, kPieces>, blocks, kThreads, stream, in,
                         static_cast<const Sum*>(x), static_cast<const Branch*>(branch), static_cast<Sum*>(sum),
                         static_cast<Normed*>(normed), mean, rstd);
  }
};
struct Backward {
  const AddLayerNorm& in;
  const void *dsum, *dnormed, *sum;
  const float *mean, *rstd;
  void *dx, *dbranch;
  float* parts;
  cudaStream_t stream;

  template <typename Sum, typename Branch, typename Normed, int kPieces>
  cudaError_t run() const {
    return launch_kernel(backward_kernel<Sum, Branch, Normed, kPieces>, static_cast<unsigned>(backward_blocks(in)),
                         kThreads, stream, in, static_cast<const Sum*>(dsum), static_cast<const Normed*>(dnormed),
                         static_cast<const Sum*>(sum), mean, rstd, static_cast<Sum*>(dx), static_cast<Branch*>(dbranch),
                         parts);
  }
};

template <typename Sum, typename Branch, typename Normed, typename Work>
cudaError_t with_pieces(const Work& work) {
  const int pieces = (work.in.features + kFour * kWarp - 1) / (kFour * kWarp);
  if (pieces <= 1) return work.template run<Sum, Branch, Normed, 1>();
  if (pieces <= 2) return work.template run<Sum, Branch, Normed, 2>();
  if (pieces <= 4) return work.template run<Sum, Branch, Normed, 4>();
  if (pieces <= 6) return work.template run<Sum, Branch, Normed, 6>();
  return work.template run<Sum, Branch, Normed, kMostPieces>();
}

// The types that occur: all alike, or a stream of float32 whose branches, and perhaps norms, are in a half type.
template <typename Work>
cudaError_t with_types(const Work& work) {
  using bf16 = __nv_bfloat16;
  const auto is = [&](Type sum, Type branch, Type normed) {
    return work.in.sum_type == sum && work.in.branch_type == branch && work.in.normed_type == normed;
  };
  if (is(Type::f32, Type::bf16, Type::bf16)) return with_pieces<float, bf16, bf16>(work);
  if (is(Type::f32, Type::bf16, Type::f32)) return with_pieces<float, bf16, float>(work);
  if (is(Type::f32, Type::f32, Type::bf16)) return with_pieces<float, float, bf16>(work);
  if (is(Type::f32, Type::f32, Type::f32)) return with_pieces<float, float, float>(work);
  if (is(Type::f32, Type::f16, Type::f16)) return with_pieces<float, __half, __half>(work);
  if (is(Type::bf16, Type::bf16, Type::bf16)) return with_pieces<bf16, bf16, bf16>(work);
  if (is(Type::f16, Type::f16, Type::f16)) return with_pieces<__half, __half, __half>(work);
  return cudaErrorNotSupported;
}

struct Nothing {
  const AddLayerNorm& in;
  template <typename Sum, typename Branch, typename Normed, int kPieces>
  cudaError_t run() const {
    return cudaSuccess;
  }
};

}  // namespace

bool add_layer_norm_fits(const AddLayerNorm& in) {
  return in.features > 0 && in.features % kFour == 0 && in.features <= kMostPieces * kFour * kWarp &&
         in.rows < (std::int64_t{1} << 31) && with_types(Nothing{in}) == cudaSuccess;
}

cudaError_t add_layer_norm(const AddLayerNorm& in, const void* x, const void* branch, void* sum, void* normed,
                           float* mean, float* rstd, cudaStream_t stream) {
  return with_types(Forward{in, x, branch, sum, normed, mean, rstd, stream});
}

std::size_t add_layer_norm_backward_workspace(const AddLayerNorm& in) {
  return static_cast<std::size_t>(backward_blocks(in) + 1) * 2 * in.features * sizeof(float);
}

cudaError_t add_layer_norm_backward(const AddLayerNorm& in, const void* dsum, const void* dnormed, const void* sum,
                                    const float* mean, const float* rstd, void* dx, void* dbranch, float* dweight,
                                    float* dbias, void* workspace, cudaStream_t stream) {
  auto* const parts = static_cast<float*>(workspace);
  const auto blocks = backward_blocks(in);
  auto error = with_types(Backward{in, dsum, dnormed, sum, mean, rstd, dx, dbranch, parts, stream});
  if (error != cudaSuccess) return error;
  float* const sums = parts + blocks * 2 * in.features;
  error = column_sums(parts, static_cast<int>(blocks), 2 * in.features, sums, stream);
  if (error != cudaSuccess) return error;
  const auto bytes = in.features * sizeof(float);
  error = cudaMemcpyAsync(dweight, sums, bytes, cudaMemcpyDeviceToDevice, stream);
  if (error != cudaSuccess) return error;
  return cudaMemcpyAsync(dbias, sums + in.features, bytes, cudaMemcpyDeviceToDevice, stream);
}

}  // namespace contextpool::cuda
