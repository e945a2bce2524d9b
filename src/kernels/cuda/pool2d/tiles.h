// The kernels that pool2d consists of, by storage type S; T is the type of its sums. Features here are [batch, cells,
// channels]. Each call starts its kernels and returns the first error.
#pragma once

#include "kernels/cuda/pool2d/map.cuh"

namespace contextpool::cuda::maps {

// Channels a thread block works on, and how many of these chunks there are.
template <typename S>
int chunk_of(std::int64_t channels) {
  constexpr int kMax = Storage<S>::kMaxChannels;
  return sizeof(S) == 2 && channels <= kMax / 2 ? kMax / 2 : kMax;
}
template <typename S>
int chunks_of(std::int64_t channels) {
  return static_cast<int>((channels + chunk_of<S>(channels) - 1) / chunk_of<S>(channels));
}

// body(std::integral_constant<int, chunk_of<S>(channels)>()).
template <typename S, typename Body>
cudaError_t with_chunk(std::int64_t channels, const Body& body) {
  constexpr int kMax = Storage<S>::kMaxChannels;
  if constexpr (sizeof(S) == 2) {
    if (chunk_of<S>(channels) < kMax) return body(std::integral_constant<int, kMax / 2>{});
  }
  return body(std::integral_constant<int, kMax>{});
}

// plan [batch, targets] and, where given, moment_reach alike; top [batch] is scratch memory.
template <typename S>
cudaError_t plan(const Map<SumOf<S>>& map, SumOf<S>* top, Target<SumOf<S>>* plan, SumOf<S>* moment_reach,
                 cudaStream_t stream);

template <typename S>
cudaError_t forward(const Map<SumOf<S>>& map, const S* x, const Target<SumOf<S>>* plan, S* y, cudaStream_t stream);

// Scratch memory of the backward, by targets of all maps where not said otherwise.
template <typename T>
struct Scratch {
  Target<T>* plan;
  T* top;  // [batch]
  T* moment_reach;
  T* mass;             // sum of weights,
  T* mass_square;      // times d^2 inv
  T* dot;              // [chunks, targets] dy . sum of weight * x, over the chunk's channels; then divided by the mass
  T* dot_square;       // [chunks, targets] the same with weights times d^2 inv
  unsigned char* any;  // [chunks, targets] whether dy has an element that is not 0
  PatchReach<T>* patch;  // [batch, patches of targets]
  int* radius;           // [batch] the largest
  T* dlog_weight;        // [chunks, pixels]
  T* origin;             // [batch, origin_width(channels)] in float32, else null: see pool1d/float32/origin.h
};

// First dsigma, and in scratch what the pixels need to know of the targets; then dx and dlog_weight.
template <typename S>
cudaError_t backward_targets(const Map<SumOf<S>>& map, const S* x, const S* dy, const Scratch<SumOf<S>>& scratch,
                             SumOf<S>* dsigma, cudaStream_t stream);
template <typename S>
cudaError_t backward_pixels(const Map<SumOf<S>>& map, const S* x, const S* dy, const Scratch<SumOf<S>>& scratch, S* dx,
                            SumOf<S>* dlog_weight, cudaStream_t stream);

// out[n][c][r] = in[n][r][c], elements of `size` bytes.
cudaError_t transpose(std::int64_t count, std::int64_t rows, std::int64_t columns, int size, const void* in, void* out,
                      cudaStream_t stream);

}  // namespace contextpool::cuda::maps
