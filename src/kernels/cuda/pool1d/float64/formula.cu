// y_i = sum_j p_ij x_j,  p_ij = exp(l_j - t^2 / (2 sigma_i^2)) / sum_k (same over k),  t = i - j; gradients as in
// ../backward.h with the tokens themselves as source rows.
#include "kernels/cuda/pool1d/float64/formula.h"

#include <cmath>

#include "kernels/cuda/common/launch.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kPlainThreads = 128, kPlainWarps = kPlainThreads / 32;
constexpr double kNone = -INFINITY;

struct PlainTarget {  // what the tokens need to know of a target
  double most, inverse, c;
};

__device__ double log_term(double l, double sigma, std::int64_t i, std::int64_t j, bool causal) {
  const double t = static_cast<double>(i - j);
  const bool exists = j == i || (!(sigma <= 0) && !(t * t > 160 * sigma * sigma) && !(causal && j > i));
  if (!exists || l == kNone) return kNone;
  return j == i ? l : l - t * t / (2 * sigma * sigma);
}

// The tokens a target may reach: [begin, end).
__device__ void support(const Pool1d& in, double sigma, std::int64_t i, std::int64_t& begin, std::int64_t& end) {
  const double r = isnan(sigma) ? in.tokens
                   : sigma > 0  ? fmin(ceil(sqrt(160.) * sigma), static_cast<double>(in.tokens))
                                : 0;
  const auto reach = static_cast<std::int64_t>(r);
  begin = max(std::int64_t{0}, i - reach);
  end = in.causal ? i + 1 : min(in.tokens, i + reach + 1);
}

// Combines over the block in a fixed order; every thread gets the result.
template <typename F>
__device__ double combine(double v, double* shared, F f) {
  __syncthreads();
  shared[threadIdx.x] = v;
  __syncthreads();
  for (int k = kPlainThreads / 2; k > 0; k /= 2) {
    if (static_cast<int>(threadIdx.x) < k) shared[threadIdx.x] = f(shared[threadIdx.x], shared[threadIdx.x + k]);
    __syncthreads();
  }
  return shared[0];
}
__device__ double larger(double a, double b) { return isnan(a) || isnan(b) ? NAN : fmax(a, b); }
__device__ double plus(double a, double b) { return a + b; }

// Where sequence b begins in x, and its k-th of so many rows in y, dy or dx.
__device__ std::int64_t x_start(const Pool1d& in, std::int64_t b) {
  return b / in.groups * in.x_batch_stride + b % in.groups * in.x_group_stride;
}
__device__ std::int64_t result_row(const Pool1d& in, std::int64_t b, std::int64_t rows, std::int64_t k) {
  return ((b / in.groups * rows + k) * in.groups + b % in.groups) * in.channels;
}

__global__ void __launch_bounds__(kPlainThreads) plain_forward_kernel(Pool1d in, double* y) {
  after_previous();
  __shared__ double shared[kPlainThreads], weight[kPlainThreads];
  const std::int64_t b = blockIdx.x / in.targets, m = blockIdx.x % in.targets, i = in.tokens - in.targets + m;
  const double sigma = static_cast<const double*>(in.sigma)[b * in.targets + m];
  const double* l = static_cast<const double*>(in.log_weight) + b * in.tokens;
  const double* x = static_cast<const double*>(in.x) + x_start(in, b);
  double* out = y + result_row(in, b, in.targets, m);
  std::int64_t begin, end;
  support(in, sigma, i, begin, end);
  double most = kNone, sum = 0;
  for (std::int64_t j = begin + threadIdx.x; j < end; j += kPlainThreads) {
    most = larger(most, log_term(l[j], sigma, i, j, in.causal));
  }
  most = combine(most, shared, larger);
  for (std::int64_t j = begin + threadIdx.x; j < end; j += kPlainThreads) {
    const double v = log_term(l[j], sigma, i, j, in.causal);
    sum += v == kNone ? 0 : exp(v - most);
  }
  sum = combine(sum, shared, plus);
  for (std::int64_t d0 = 0; d0 < in.channels; d0 += kPlainThreads) {
    const std::int64_t d = d0 + threadIdx.x;
    double value = 0;
    for (std::int64_t j0 = begin; j0 < end; j0 += kPlainThreads) {
      const std::int64_t j = j0 + threadIdx.x;
      const double v = j < end ? log_term(l[j], sigma, i, j, in.causal) : kNone;
      __syncthreads();
      weight[threadIdx.x] = v == kNone ? 0 : exp(v - most) / sum;
      __syncthreads();
      for (int k = 0; k < kPlainThreads && j0 + k < end && d < in.channels; ++k) {
        if (weight[k] != 0) value += weight[k] * x[(j0 + k) * in.x_token_stride + d];
      }
    }
    if (d < in.channels) out[d] = value;
  }
}

__global__ void __launch_bounds__(kPlainThreads)
    plain_target_kernel(Pool1d in, const double* dy, double* dsigma, PlainTarget* targets) {
  after_previous();
  __shared__ double shared[kPlainThreads];
  const std::int64_t b = blockIdx.x / in.targets, m = blockIdx.x % in.targets, i = in.tokens - in.targets + m;
  const double sigma = static_cast<const double*>(in.sigma)[b * in.targets + m];
  const double* l = static_cast<const double*>(in.log_weight) + b * in.tokens;
  const double* x = static_cast<const double*>(in.x) + x_start(in, b);
  const double* g = dy + result_row(in, b, in.targets, m);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  std::int64_t begin, end;
  support(in, sigma, i, begin, end);
  double most = kNone;
  for (std::int64_t j = begin + threadIdx.x; j < end; j += kPlainThreads) {
    most = larger(most, log_term(l[j], sigma, i, j, in.causal));
  }
  most = combine(most, shared, larger);
  bool alive = false;  // a target whose dy is 0 has no share in any gradient
  for (std::int64_t d = threadIdx.x; d < in.channels; d += kPlainThreads) alive = alive || g[d] != 0;
  if (__syncthreads_or(alive) == 0) {
    if (threadIdx.x == 0) {
      targets[blockIdx.x] = {most, 0, 0};
      dsigma[blockIdx.x] = 0;
    }
    return;
  }
  double sums[4] = {};  // Z, sum a s, sum a t^2 s, sum a t^2
  for (std::int64_t j = begin + warp; j < end; j += kPlainWarps) {
    const double v = log_term(l[j], sigma, i, j, in.causal);
    if (v == kNone) continue;
    double score = 0;
    for (std::int64_t d = lane; d < in.channels; d += 32) score += g[d] * x[j * in.x_token_stride + d];
    for (int k = 16; k > 0; k /= 2) score += __shfl_xor_sync(0xffffffffu, score, k);
    const double a = exp(v - most), t = static_cast<double>(i - j);
    sums[0] += a;
    sums[1] += a * score;
    sums[2] += a * t * t * score;
    sums[3] += a * t * t;
  }
  for (double& sum : sums) sum = combine(lane == 0 ? sum : 0, shared, plus);
  if (threadIdx.x != 0) return;
  const double inverse = sums[0] == 0 ? 0 : 1 / sums[0], c = sums[1] * inverse;
  targets[blockIdx.x] = {most, inverse, c};
  dsigma[blockIdx.x] = sums[3] == 0 ? 0 : (sums[2] - c * sums[3]) * inverse / (sigma * sigma * sigma);
}

__global__ void __launch_bounds__(kPlainThreads)
    plain_token_kernel(Pool1d in, const double* dy, const PlainTarget* targets, double* dx, double* dlog_weight) {
  after_previous();
  __shared__ double shared[kPlainThreads], weight[kPlainThreads];
  const std::int64_t b = blockIdx.x / in.tokens, j = blockIdx.x % in.tokens, shift = in.tokens - in.targets;
  const double log_weight = static_cast<const double*>(in.log_weight)[b * in.tokens + j];
  const double* sigma = static_cast<const double*>(in.sigma) + b * in.targets;
  const double* x = static_cast<const double*>(in.x) + x_start(in, b) + j * in.x_token_stride;
  double* out = dx + result_row(in, b, in.tokens, j);
  double dot = 0, mass = 0;
  for (std::int64_t d0 = 0; d0 < in.channels; d0 += kPlainThreads) {
    const std::int64_t d = d0 + threadIdx.x;
    double value = 0;
    for (std::int64_t m0 = in.causal ? max(std::int64_t{0}, j - shift) : 0; m0 < in.targets; m0 += kPlainThreads) {
      const std::int64_t m = m0 + threadIdx.x;
      double w = 0;
      if (m < in.targets) {
        const double v = log_term(log_weight, sigma[m], shift + m, j, in.causal);
        const PlainTarget t = targets[b * in.targets + m];
        if (v != kNone && t.inverse != 0) w = exp(v - t.most) * t.inverse;
        if (d0 == 0 && w != 0) mass += w * t.c;
      }
      if (__syncthreads_or(w != 0) == 0) continue;  // NaN counts
      weight[threadIdx.x] = w;
      __syncthreads();
      for (int k = 0; k < kPlainThreads && m0 + k < in.targets && d < in.channels; ++k) {
        if (weight[k] != 0) value += weight[k] * dy[result_row(in, b, in.targets, m0 + k) + d];
      }
    }
    if (d >= in.channels) continue;
    out[d] = value;
    if (log_weight != kNone && value != 0) dot += value * x[d];
  }
  dot = combine(dot, shared, plus);
  mass = combine(mass, shared, plus);
  if (threadIdx.x == 0) dlog_weight[blockIdx.x] = dot - mass;
}

}  // namespace

std::size_t plain_workspace(const Pool1d& in) { return sizeof(PlainTarget) * in.batch * in.targets; }

cudaError_t plain_forward(const Pool1d& in, double* y, cudaStream_t stream) {
  return launch<plain_forward_kernel>(blocks_for(in.batch * in.targets, 1), kPlainThreads, 0, stream, in, y);
}

cudaError_t plain_backward(const Pool1d& in, const double* dy, double* dx, double* dlog_weight, double* dsigma,
                           void* workspace, cudaStream_t stream) {
  auto* targets = static_cast<PlainTarget*>(workspace);
  const cudaError_t error = launch<plain_target_kernel>(blocks_for(in.batch * in.targets, 1), kPlainThreads, 0, stream,
                                                        in, dy, dsigma, targets);
  if (error != cudaSuccess) return error;
  return launch<plain_token_kernel>(blocks_for(in.batch * in.tokens, 1), kPlainThreads, 0, stream, in, dy, targets, dx,
                                    dlog_weight);
}

}  // namespace contextpool::cuda
