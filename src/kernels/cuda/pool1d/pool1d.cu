// Which kernels run, in which order, on which memory. Nothing here depends on a value on the device.
//
// Short sequences: plan, then tiles over tokens. Long ones: tree, plan, sort by level, tiles over the levels; causal
// ones first over each target's last tokens, as they come. In float32 the tree, or else the backward, needs an origin
// first.
#include "kernels/cuda/pool1d/pool1d.h"

#include <type_traits>

#include "kernels/cuda/common/arena.h"
#include "kernels/cuda/pool1d/backward.h"
#include "kernels/cuda/pool1d/float32/balance.h"
#include "kernels/cuda/pool1d/float32/origin.h"
#include "kernels/cuda/pool1d/float64/formula.h"
#include "kernels/cuda/pool1d/forward.h"
#include "kernels/cuda/pool1d/plan/plan.h"
#include "kernels/cuda/pool1d/plan/sort.h"
#include "kernels/cuda/pool1d/tree/tree.h"

namespace contextpool::cuda {
namespace {

// For few targets, building the tree costs more than it saves where their windows are short beside the row.
float least_size_of_few(std::int64_t tokens) { return 64.f + static_cast<float>(tokens) / 400.f; }

struct Scratch {
  Problem problem;  // its memory: the plan and the tree, made by the forward
  int* counts = nullptr;
  float* near_mass = nullptr;
  Backward backward{};
  std::size_t bytes = 0;

  bool sorted() const { return problem.tree.exists(); }
  bool near() const { return sorted() && problem.causal; }
};

bool is_aligned(const void* p, std::int64_t stride_bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && stride_bytes % 16 == 0;
}

// Whether small differences of large sums are asked for: half types have coarser bounds.
template <typename T>
constexpr bool exact() {
  return std::is_same_v<T, float>;
}

template <typename T>
Scratch lay_out(const Pool1d& in, void* kept) {
  Scratch s{};
  Problem& p = s.problem;
  p.batch = static_cast<int>(in.batch);
  p.tokens = static_cast<int>(in.tokens);
  p.targets = static_cast<int>(in.targets);
  p.channels = static_cast<int>(in.channels);
  p.causal = in.causal;
  p.x = in.x;
  p.x_batch_stride = in.x_batch_stride;
  p.x_token_stride = in.x_token_stride;
  p.x_group_stride = in.x_group_stride;
  p.groups = static_cast<int>(in.groups);
  p.result_row = static_cast<int>(in.groups * in.channels);
  p.log_weight = static_cast<const float*>(in.log_weight);
  p.sigma = static_cast<const float*>(in.sigma);
  p.aligned = in.channels * sizeof(T) % 16 == 0 && is_aligned(in.x, in.x_token_stride * sizeof(T)) &&
              in.x_batch_stride * sizeof(T) % 16 == 0 && in.x_group_stride * sizeof(T) % 16 == 0;
  const bool few = in.targets * kMany < in.tokens;
  const bool is_long = in.tokens > (few ? kLongForFew : kLongSequence);
  const bool automatic = in.algorithm == Algorithm::automatic;
  if (in.algorithm == Algorithm::pyramid || (automatic && is_long)) p.tree = make_tree(p.tokens, p.batch);
  p.least_size = automatic && few ? least_size_of_few(in.tokens) : 0.f;
  Arena arena(kept);
  p.tiles = (p.targets + kTile - 1) / kTile;
  if (s.sorted()) {
    p.tiles = max_sorted_tiles(p.targets, p.tree);
    const std::int64_t blocks = in.batch * p.tree.blocks;
    p.nodes = arena.take<T>(blocks * kNodes * in.channels);
    p.mass = arena.take<float>(blocks * kNodes);
    p.block_log = arena.take<float>(blocks);
    p.block_top = arena.take<float>(blocks);
    p.sorted = arena.take<Target>(in.batch * p.tiles * kTile);
    s.counts = arena.take<int>(in.batch * sort_chunks(p.targets) * kClasses);
    p.class_tile = arena.take<int>(in.batch * (kClasses + 1));
    p.may_use_tree = arena.take<int>(in.batch);
    if (exact<T>()) p.origin = arena.take<float>(in.batch * origin_width(p.channels));
  }
  p.plan = arena.take<Target>(in.batch * in.targets);
  p.group_max = arena.take<float>(in.batch * ((in.tokens + kRows - 1) / kRows));
  if (s.near()) s.near_mass = arena.take<float>(in.batch * in.targets);
  s.bytes = arena.size();
  return s;
}

template <typename T>
std::size_t lay_out_backward(const Pool1d& in, Scratch& s, void* workspace) {
  Problem& p = s.problem;
  Backward& b = s.backward;
  Arena arena(workspace);
  if (exact<T>() && !s.sorted()) p.origin = arena.take<float>(in.batch * origin_width(p.channels));
  b.by_tile = arena.take<Weighted>(in.batch * p.tiles * kTile);
  b.bounds = arena.take<int4>(in.batch * p.tiles * 2);
  if (2 * p.tiles > kManyHalves) b.index = arena.take<int4>(in.batch * index_size(p.tiles));
  if (s.near()) {
    b.by_target = arena.take<Weighted>(in.batch * in.targets);
    b.near_sums = arena.take<float4>(in.batch * in.targets);
  }
  if (s.sorted()) {
    b.gradient = arena.take<float>(in.batch * p.tree.part_blocks * kNodes * gradient_width(p.channels));
  }
  const std::int64_t columns = columns_of<T>(p.channels);
  if (columns > 1 || exact<T>()) b.partial = arena.take<float>(columns * in.batch * in.tokens);
  if (exact<T>()) {
    b.weight = arena.take<float>(in.batch * in.tokens);
    b.residue = arena.take<Residue>(in.batch * balance_chunks(p.tokens));
  }
  return arena.size();
}

template <typename T>
Precision precision_of();
template <>
Precision precision_of<float>() {
  return {24, -19, 1, false};
}
template <>
Precision precision_of<__nv_bfloat16>() {
  return {12, -8, 2.5f, false};
}
template <>
Precision precision_of<__half>() {
  return {18, -11, 2, true};
}

#define CONTEXTPOOL_RETURN_IF_ERROR(call) \
  if (const cudaError_t error = (call); error != cudaSuccess) return error

template <typename T>
cudaError_t prepare(const Scratch& s, cudaStream_t stream) {
  CONTEXTPOOL_RETURN_IF_ERROR(weigh_tokens(s.problem, precision_of<T>(), s.counts, stream));
  if (exact<T>() && s.sorted()) CONTEXTPOOL_RETURN_IF_ERROR(find_origin(s.problem, !plans_alone(s.problem), stream));
  CONTEXTPOOL_RETURN_IF_ERROR(plan_targets(s.problem, precision_of<T>(), s.counts, stream));
  if (!s.sorted()) return cudaSuccess;
  CONTEXTPOOL_RETURN_IF_ERROR(raise_tokens<T>(s.problem, stream));
  CONTEXTPOOL_RETURN_IF_ERROR(sort_targets(s.problem, s.counts, stream));
  return raise_blocks<T>(s.problem, stream);
}

template <typename T>
cudaError_t forward(const Pool1d& in, T* y, void* kept, cudaStream_t stream) {
  Scratch s = lay_out<T>(in, kept);
  s.problem.aligned = s.problem.aligned && is_aligned(y, 0);
  CONTEXTPOOL_RETURN_IF_ERROR(prepare<T>(s, stream));
  if (!s.near()) return forward_tiles<T>(s.problem, Part::all, y, nullptr, stream);
  CONTEXTPOOL_RETURN_IF_ERROR(forward_tiles<T>(s.problem, Part::near, y, s.near_mass, stream));
  return forward_tiles<T>(s.problem, Part::far, y, s.near_mass, stream);
}

template <typename T>
cudaError_t backward(const Pool1d& in, const void* dy, void* dx, float* dlog_weight, float* dsigma, const void* kept,
                     void* workspace, cudaStream_t stream) {
  auto* memory = static_cast<unsigned char*>(workspace);
  Scratch s = lay_out<T>(in, kept == nullptr ? memory : const_cast<void*>(kept));
  if (kept == nullptr) {
    CONTEXTPOOL_RETURN_IF_ERROR(prepare<T>(s, stream));
    memory += s.bytes;
  }
  lay_out_backward<T>(in, s, memory);
  s.problem.aligned = s.problem.aligned && is_aligned(dy, 0) && is_aligned(dx, 0);
  s.backward.dy = dy;
  s.backward.dx = dx;
  s.backward.dlog_weight = dlog_weight;
  s.backward.dsigma = dsigma;
  if (exact<T>() && !s.sorted()) CONTEXTPOOL_RETURN_IF_ERROR(find_origin(s.problem, !plans_alone(s.problem), stream));
  if (s.near()) CONTEXTPOOL_RETURN_IF_ERROR(score_tiles<T>(s.problem, Part::near, s.backward, stream));
  CONTEXTPOOL_RETURN_IF_ERROR(score_tiles<T>(s.problem, s.near() ? Part::far : Part::all, s.backward, stream));
  if (s.backward.index != nullptr) CONTEXTPOOL_RETURN_IF_ERROR(index_bounds(s.problem, s.backward, stream));
  if (s.sorted()) {
    CONTEXTPOOL_RETURN_IF_ERROR(gather_blocks<T>(s.problem, s.backward, stream));
    CONTEXTPOOL_RETURN_IF_ERROR(push_down(s.problem, s.backward.gradient, stream));
  }
  return gather_tokens<T>(s.problem, s.backward, stream);
}

template <typename T>
std::size_t backward_bytes(const Pool1d& in, bool kept) {
  Scratch s = lay_out<T>(in, nullptr);
  return lay_out_backward<T>(in, s, nullptr) + (kept ? 0 : s.bytes);
}

}  // namespace

std::size_t pool1d_kept(const Pool1d& in) {
  switch (in.type) {
    case Type::f64: return 0;
    case Type::bf16: return lay_out<__nv_bfloat16>(in, nullptr).bytes;
    case Type::f16: return lay_out<__half>(in, nullptr).bytes;
    default: return lay_out<float>(in, nullptr).bytes;
  }
}

std::size_t pool1d_backward_workspace(const Pool1d& in, bool kept) {
  switch (in.type) {
    case Type::f64: return plain_workspace(in);
    case Type::bf16: return backward_bytes<__nv_bfloat16>(in, kept);
    case Type::f16: return backward_bytes<__half>(in, kept);
    default: return backward_bytes<float>(in, kept);
  }
}

cudaError_t pool1d(const Pool1d& in, void* y, void* kept, cudaStream_t stream) {
  switch (in.type) {
    case Type::f64: return plain_forward(in, static_cast<double*>(y), stream);
    case Type::bf16: return forward(in, static_cast<__nv_bfloat16*>(y), kept, stream);
    case Type::f16: return forward(in, static_cast<__half*>(y), kept, stream);
    default: return forward(in, static_cast<float*>(y), kept, stream);
  }
}

cudaError_t pool1d_backward(const Pool1d& in, const void* dy, void* dx, void* dlog_weight, void* dsigma,
                            const void* kept, void* workspace, cudaStream_t stream) {
  if (in.type == Type::f64) {
    return plain_backward(in, static_cast<const double*>(dy), static_cast<double*>(dx),
                          static_cast<double*>(dlog_weight), static_cast<double*>(dsigma), workspace, stream);
  }
  auto* dl = static_cast<float*>(dlog_weight);
  auto* ds = static_cast<float*>(dsigma);
  switch (in.type) {
    case Type::bf16: return backward<__nv_bfloat16>(in, dy, dx, dl, ds, kept, workspace, stream);
    case Type::f16: return backward<__half>(in, dy, dx, dl, ds, kept, workspace, stream);
    default: return backward<float>(in, dy, dx, dl, ds, kept, workspace, stream);
  }
}

}  // namespace contextpool::cuda
