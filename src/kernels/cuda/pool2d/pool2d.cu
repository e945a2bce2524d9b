// pool2d from plain pointers to kernels: scratch memory, the order of features, the storage type.
#include "kernels/cuda/pool2d/pool2d.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/cuda/common/arena.h"
#include "kernels/cuda/pool1d/float32/origin.h"
#include "kernels/cuda/pool2d/tiles.h"

namespace contextpool::cuda {
namespace {

using maps::Map;
using maps::Scratch;
using maps::SumOf;
using maps::Target;

template <typename Body>
auto with_type(Type type, const Body& body) {
  switch (type) {
    case Type::f64: return body(double{});
    case Type::f32: return body(float{});
    case Type::bf16: return body(__nv_bfloat16{});
    default: return body(__half{});
  }
}

// Whether rows of channels are what the caller keeps.
bool by_rows(const Pool2d& in) { return in.channels_last || in.channels == 1; }

template <typename S>
Map<SumOf<S>> map_of(const Pool2d& in) {
  using T = SumOf<S>;
  return {in.batch,
          in.channels,
          in.algorithm == Algorithm::dense,
          in.channels % (16 / sizeof(S)) == 0,
          {static_cast<int>(in.height), static_cast<int>(in.width), 1, 1},
          {static_cast<int>(in.out_height), static_cast<int>(in.out_width), static_cast<int>(in.stride_h),
           static_cast<int>(in.stride_w)},
          static_cast<const T*>(in.log_weight),
          static_cast<const T*>(in.sigma)};
}

bool is_aligned(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory) % 16 == 0; }

// What the kernels work on: the caller's memory, or copies of it in the workspace.
template <typename S>
struct Forward {
  Forward(const Pool2d& in, void* memory) : arena(memory) {
    using T = SumOf<S>;
    plan = arena.take<Target<T>>(in.batch * in.targets());
    top = arena.take<T>(in.batch);
    if (by_rows(in)) return;
    x = arena.take<S>(in.batch * in.channels * in.pixels());
    y = arena.take<S>(in.batch * in.channels * in.targets());
  }
  Arena arena;
  Target<SumOf<S>>* plan;
  SumOf<S>* top;
  S* x = nullptr;
  S* y = nullptr;
};

template <typename S>
struct Backward {
  Backward(const Pool2d& in, void* memory) : arena(memory) {
    using T = SumOf<S>;
    const std::int64_t targets = in.batch * in.targets(), chunks = maps::chunks_of<S>(in.channels);
    const auto map = map_of<S>(in);
    scratch.plan = arena.take<Target<T>>(targets);
    scratch.top = arena.take<T>(in.batch);
    scratch.moment_reach = arena.take<T>(targets);
    scratch.mass = arena.take<T>(targets);
    scratch.mass_square = arena.take<T>(targets);
    scratch.dot = arena.take<T>(chunks * targets);
    scratch.dot_square = arena.take<T>(chunks * targets);
    scratch.any = arena.take<unsigned char>(chunks * targets);
    scratch.patch = arena.take<maps::PatchReach<T>>(in.batch * map.targets.patches());
    scratch.radius = arena.take<int>(in.batch);
    scratch.dlog_weight = chunks == 1 ? nullptr : arena.take<T>(chunks * in.batch * in.pixels());
    if (std::is_same_v<S, float>)
      scratch.origin = arena.take<T>(in.batch * origin_width(static_cast<int>(in.channels)));
    if (by_rows(in)) return;
    x = arena.take<S>(in.batch * in.channels * in.pixels());
    dy = arena.take<S>(in.batch * in.channels * in.targets());
    dx = arena.take<S>(in.batch * in.channels * in.pixels());
  }
  Arena arena;
  Scratch<SumOf<S>> scratch{};
  S* x = nullptr;
  S* dy = nullptr;
  S* dx = nullptr;
};

template <typename S>
cudaError_t run_forward(const Pool2d& in, void* y, void* workspace, cudaStream_t stream) {
  const Forward<S> own(in, workspace);
  auto map = map_of<S>(in);
  const bool copies = !by_rows(in);
  const auto* x = copies ? own.x : static_cast<const S*>(in.x);
  auto* out = copies ? own.y : static_cast<S*>(y);
  map.aligned = map.aligned && is_aligned(x) && is_aligned(out);
  if (copies) {
    if (const auto e = maps::transpose(in.batch, in.channels, in.pixels(), sizeof(S), in.x, own.x, stream)) return e;
  }
  if (const auto e = maps::plan<S>(map, own.top, own.plan, nullptr, stream)) return e;
  if (const auto e = maps::forward<S>(map, x, own.plan, out, stream)) return e;
  return copies ? maps::transpose(in.batch, in.targets(), in.channels, sizeof(S), own.y, y, stream) : cudaSuccess;
}

template <typename S>
cudaError_t run_backward(const Pool2d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma, void* workspace,
                         cudaStream_t stream) {
  using T = SumOf<S>;
  const Backward<S> own(in, workspace);
  auto map = map_of<S>(in);
  const bool copies = !by_rows(in);
  const auto* x = copies ? own.x : static_cast<const S*>(in.x);
  const auto* g = copies ? own.dy : static_cast<const S*>(dy);
  auto* out = copies ? own.dx : static_cast<S*>(dx);
  map.aligned = map.aligned && is_aligned(x) && is_aligned(g) && is_aligned(out);
  if (copies) {
    if (const auto e = maps::transpose(in.batch, in.channels, in.pixels(), sizeof(S), in.x, own.x, stream)) return e;
    if (const auto e = maps::transpose(in.batch, in.channels, in.targets(), sizeof(S), dy, own.dy, stream)) return e;
  }
  if constexpr (std::is_same_v<S, float>) {
    Problem row{};  // the map as a row of pixels
    row.batch = static_cast<int>(in.batch);
    row.tokens = static_cast<int>(in.pixels());
    row.channels = static_cast<int>(in.channels);
    row.x = x;
    row.x_batch_stride = in.pixels() * in.channels;
    row.x_token_stride = in.channels;
    row.log_weight = map.log_weight;
    row.origin = own.scratch.origin;
    if (const auto e = find_origin(row, false, stream)) return e;
  }
  if (const auto e = maps::plan<S>(map, own.scratch.top, own.scratch.plan, own.scratch.moment_reach, stream)) return e;
  const auto& scratch = own.scratch;
  if (const auto e = maps::backward_targets<S>(map, x, g, scratch, static_cast<T*>(dsigma), stream)) return e;
  if (const auto e = maps::backward_pixels<S>(map, x, g, scratch, out, static_cast<T*>(dlog_weight), stream)) return e;
  return copies ? maps::transpose(in.batch, in.pixels(), in.channels, sizeof(S), own.dx, dx, stream) : cudaSuccess;
}

}  // namespace

bool pool2d_fits(const Pool2d& in) {
  return with_type(in.type, [&](auto zero) {
    using S = decltype(zero);
    const auto map = map_of<S>(in);
    const double tiles = std::max(map.pixels.tiles(), map.targets.tiles());
    const double squares = (static_cast<double>(in.channels) / 32 + 1) * (static_cast<double>(in.pixels()) / 32 + 1);
    const double most = std::max(tiles * maps::chunks_of<S>(in.channels), squares);
    return static_cast<double>(in.batch) * std::max(most, static_cast<double>(in.targets()) / maps::kWarps + 1) <
           static_cast<double>(std::numeric_limits<int>::max());
  });
}

std::size_t pool2d_workspace(const Pool2d& in) {
  return with_type(in.type, [&](auto zero) { return Forward<decltype(zero)>(in, nullptr).arena.size(); });
}

std::size_t pool2d_backward_workspace(const Pool2d& in) {
  return with_type(in.type, [&](auto zero) { return Backward<decltype(zero)>(in, nullptr).arena.size(); });
}

cudaError_t pool2d(const Pool2d& in, void* y, void* workspace, cudaStream_t stream) {
  return with_type(in.type, [&](auto zero) { return run_forward<decltype(zero)>(in, y, workspace, stream); });
}

cudaError_t pool2d_backward(const Pool2d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                            void* workspace, cudaStream_t stream) {
  return with_type(in.type, [&](auto zero) {
    return run_backward<decltype(zero)>(in, dy, dx, dlog_weight, dsigma, workspace, stream);
  });
}

}  // namespace contextpool::cuda
