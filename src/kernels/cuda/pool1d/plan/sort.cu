// The order of the targets in tiles: by class (tokens, then the levels of the tree), then by position.
#include "kernels/cuda/pool1d/plan/sort.h"

#include "kernels/cuda/common/launch.cuh"

namespace contextpool::cuda {
namespace {

// Targets share tiles within spans of so many (2^this) chunks, counted from the first target: those of a tile lie
// within about two windows (16 blocks, or 512 tokens). A tile of far apart targets would go through a long list of
// sources that each serve one or two of them. Which targets share one, and where in it they stand, depends on no later
// target: the sums over targets are the same to the bit whatever comes later.
__host__ __device__ int span_chunks(int c) {
  static_assert(kSortChunk == 1 << (kLeaf + kSpan - 1));
  return c == 0 ? 0 : level_of_class(c) - kLeaf + 1;
}

// The members of a class, a warp's count.
struct Spans {
  int tiles, tiles_before;      // in all; in the spans before this one
  int members, members_before;  // of this span; in the chunks before this one
};

// counts: of each chunk, kClasses apart. This chunk's span is one of 2^shift chunks.
__device__ Spans count_spans(const int* counts, int chunks, int chunk, int shift) {
  const int lane = threadIdx.x % 32, span = chunk >> shift, lanes = 1 << min(shift, 5);
  Spans own{};   // this lane's share
  int open = 0;  // and of the members so far of a span of more than 32 chunks
#pragma unroll 4
  for (int base = 0; base < chunks; base += 32) {
    const int k = base + lane, n = k < chunks ? counts[static_cast<std::int64_t>(k) * kClasses] : 0;
    const bool here = k >> shift == span;
    own.members += here ? n : 0;
    own.members_before += here && k < chunk ? n : 0;
    int all = n;  // of the lane's span
    bool complete = lane % lanes == 0;
    if (shift <= 5) {
      for (int m = 1; m < lanes; m *= 2) all += __shfl_xor_sync(0xffffffffu, all, m);
    } else {
      open += n;
      const bool ends = (base + 32) % (1 << shift) == 0 || base + 32 >= chunks;
      complete = complete && ends;
      if (ends) all = __reduce_add_sync(0xffffffffu, open);
      open = ends ? 0 : open;
    }
    const int tiles = complete ? (all + kTile - 1) / kTile : 0;
    own.tiles += tiles;
    own.tiles_before += k >> shift < span ? tiles : 0;
  }
  const auto sum = [](int v) { return __reduce_add_sync(0xffffffffu, v); };
  return {sum(own.tiles), sum(own.tiles_before), sum(own.members), sum(own.members_before)};
}

// Stable counting sort of a sequence's targets by class and span; each span starts on a tile of its own.
__global__ void __launch_bounds__(kSortChunk) sort_kernel(Problem in, const int* counts, int chunks) {
  after_previous();
  if (in.tree.last > kLeaf + kRaiseUp) let_next_start();  // more of the tree
  constexpr int kWarps = kSortChunk / 32;
  __shared__ int warp_count[kWarps][kClasses], members[kClasses], members_before[kClasses];
  __shared__ int tiles[kClasses], first_tile[kClasses], used;  // first_tile: of this span
  const int b = blockIdx.x / chunks, chunk = blockIdx.x % chunks, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int m = chunk * kSortChunk + threadIdx.x;
  const bool here = m < in.targets;
  Target target;
  if (here) target = in.plan[static_cast<std::int64_t>(b) * in.targets + m];
  const int classes = class_of_level(in.tree.last) + 1;
  for (int c = warp; c < classes; c += kWarps) {
    const Spans spans =
        count_spans(counts + static_cast<std::int64_t>(b) * chunks * kClasses + c, chunks, chunk, span_chunks(c));
    if (lane == 0) {
      members[c] = spans.members;
      members_before[c] = spans.members_before;
      tiles[c] = spans.tiles;
      first_tile[c] = spans.tiles_before;
    }
    if (lane < kWarps) warp_count[lane][c] = 0;
  }
  __syncthreads();
  if (warp == 0) {  // a lane has a class
    const int own = lane < classes ? tiles[lane] : 0;
    int end = own;
    for (int k = 1; k < 32; k *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, end, k);
      end += lane >= k ? before : 0;
    }
    if (lane < classes) first_tile[lane] += end - own;
    if (chunk == 0 && lane <= kClasses) in.class_tile[b * (kClasses + 1) + lane] = end - own;
    if (lane == 31) used = end;
  }
  const int c = here ? class_of_level(target.level) : -1;
  const unsigned same = __match_any_sync(0xffffffffu, c);
  const int rank = __popc(same & ((1u << lane) - 1));
  if (here && rank == 0) warp_count[warp][c] = __popc(same);
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < classes) {
    int sum = members_before[threadIdx.x];
    for (int w = 0; w < kWarps; ++w) {
      const int n = warp_count[w][threadIdx.x];
      warp_count[w][threadIdx.x] = sum;
      sum += n;
    }
  }
  __syncthreads();
  const Target padding{0, 0, 0, 0, 0, 0, -1, 1};
  for (int k = used * kTile + m; k < in.tiles * kTile; k += chunks * kSortChunk) {  // tiles without targets
    in.sorted[static_cast<std::int64_t>(b) * in.tiles * kTile + k] = padding;
  }
  if (!here) return;
  const int at = warp_count[warp][c] + rank;
  Target* tile = in.sorted + (static_cast<std::int64_t>(b) * in.tiles + first_tile[c] + at / kTile) * kTile;
  tile[at % kTile] = target;
  if (at + 1 < members[c]) return;
  for (int k = at % kTile + 1; k < kTile; ++k) tile[k] = padding;
}

}  // namespace

int sort_chunks(int targets) { return (targets + kSortChunk - 1) / kSortChunk; }

int max_sorted_tiles(int targets, const Tree& tree) {
  // Full tiles, and one begun in each span of each class.
  int tiles = targets / kTile;
  for (int c = 0; c <= class_of_level(tree.last); ++c) tiles += ((sort_chunks(targets) - 1) >> span_chunks(c)) + 1;
  return tiles;
}

cudaError_t sort_targets(const Problem& in, const int* counts, cudaStream_t stream) {
  const int chunks = sort_chunks(in.targets);
  return launch<sort_kernel>(dim3(in.batch * chunks), kSortChunk, 0, stream, in, counts, chunks);
}

}  // namespace contextpool::cuda
