// A thread has the same piece of a head in every part, so that it reads the turns of its pairs once.
#include "kernels/cuda/rotary/rotary.h"

#include "kernels/cuda/elementwise/launch.cuh"
#include "kernels/cuda/elementwise/vector.cuh"

namespace contextpool::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct TurnOf {
  using type = float;
};
template <>
struct TurnOf<double> {
  using type = double;
};

// kPiece: features of a piece; kWholePieces: one instruction moves it.
template <typename T, int kPiece, bool kWholePieces>
__device__ Vector<T, kPiece> read(const T* from) {
  if constexpr (kWholePieces) {
    return load<T, kPiece>(from);
  } else {
    Vector<T, kPiece> values;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) values.at[i] = from[i];
    return values;
  }
}
template <typename T, int kPiece, bool kWholePieces>
__device__ void write(T* to, const Vector<T, kPiece>& values) {
  if constexpr (kWholePieces) {
    store<T, kPiece>(to, values);
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) to[i] = values.at[i];
  }
}

template <typename T, int kPiece, bool kWholePieces>
__global__ void __launch_bounds__(kThreads) rotary_kernel(const Rotary in) {
  using Turn = typename TurnOf<T>::type;
  const unsigned pieces = static_cast<unsigned>(in.features / kPiece), heads = static_cast<unsigned>(in.heads);
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  const unsigned row = index / (pieces * heads), inside = index - row * (pieces * heads);
  const unsigned head = inside / pieces, piece = inside - head * pieces;
  const unsigned b = row / static_cast<unsigned>(in.tokens), token = row - b * static_cast<unsigned>(in.tokens);
  if (b >= in.batch) return;

  const std::int64_t at = b * in.turn_batch + token * in.turn_token + piece * (kPiece / 2) * in.turn_pair;
  Turn c[kPiece / 2], s[kPiece / 2];
#pragma unroll
  for (int k = 0; k < kPiece / 2; ++k) {
    c[k] = static_cast<const Turn*>(in.cos)[at + k * in.turn_pair];
    const Turn sine = static_cast<const Turn*>(in.sin)[at + k * in.turn_pair];
    s[k] = in.back ? -sine : sine;
  }
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    if (p >= in.parts) break;
    const RotaryPart& part = in.part[p];
    auto x = read<T, kPiece, kWholePieces>(static_cast<const T*>(part.from) + b * part.from_batch +
                                           token * part.from_token + head * part.from_head + piece * kPiece);
    if (part.turns) {
#pragma unroll
      for (int k = 0; k < kPiece / 2; ++k) {
        const Turn even = widen(x.at[2 * k]), odd = widen(x.at[2 * k + 1]);
        x.at[2 * k] = narrow<T>(even * c[k] - odd * s[k]);
        x.at[2 * k + 1] = narrow<T>(even * s[k] + odd * c[k]);
      }
    }
    write<T, kPiece, kWholePieces>(
        static_cast<T*>(part.to) + b * part.to_batch + token * part.to_token + head * part.to_head + piece * kPiece, x);
  }
}

bool whole(const Rotary& in, std::int64_t piece) {
  bool fits = in.features % piece == 0;
  for (int p = 0; p < in.parts; ++p) {
    const RotaryPart& part = in.part[p];
    fits = fits && aligned(part.from, 16) && aligned(part.to, 16);
    for (const auto stride :
         {part.from_batch, part.from_token, part.from_head, part.to_batch, part.to_token, part.to_head}) {
      fits = fits && stride % piece == 0;
    }
  }
  return fits;
}

template <typename T, int kPiece, bool kWholePieces>
cudaError_t launch(const Rotary& in, cudaStream_t stream) {
  const std::int64_t items = in.batch * in.tokens * in.heads * (in.features / kPiece);
  if (items == 0) return cudaSuccess;
  if (items > (std::int64_t{1} << 32) - kThreads) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>((items + kThreads - 1) / kThreads);
  return launch_kernel(rotary_kernel<T, kPiece, kWholePieces>, blocks, kThreads, stream, in);
}

template <typename T>
cudaError_t run(const Rotary& in, cudaStream_t stream) {
  return whole(in, kWhole<T>) ? launch<T, kWhole<T>, true>(in, stream) : launch<T, 2, false>(in, stream);
}

}  // namespace

cudaError_t rotary(const Rotary& in, cudaStream_t stream) {
  switch (in.type) {
    case Type::f64: return run<double>(in, stream);
    case Type::f32: return run<float>(in, stream);
    case Type::bf16: return run<__nv_bfloat16>(in, stream);
    case Type::f16: return run<__half>(in, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace contextpool::cuda
