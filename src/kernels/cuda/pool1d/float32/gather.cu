// The transpose of the forward sum in float32, owned by source rows: 64 rows at a time gather from the targets whose
// sources include them (32 at a time, weights on the fly). No atomics: the same bits every run. (half/gather.cu has
// the half types.)
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/float32/balance.h"
#include "kernels/cuda/pool1d/float32/product.cuh"
#include "kernels/cuda/pool1d/gather.cuh"

namespace contextpool::cuda {
namespace {

__device__ const LeafTable kLeafTable = LeafTable();

constexpr int kStages = kPlainPipe.stages, kRing = ring_of(kPlainPipe);

template <typename T>
struct GatherShared {
  T a[2][kTile * Product<T>::kA];
  T b[kStages][kRows * Product<T>::kB];  // at the end of the tokens, the first two as one: 64 rows of x, then of dx
  union {
    Weighted targets[kRing][kRows];
    float2 mass[kRows / kSlot][kTile];  // at the end: shares of Gm and Gw
  };
  float leaf[kTile][kNodes];
  float share[kTile][17];
  GroupList<kThreads> groups;
};

struct Row {  // one of the 64; position base + offset
  int unit;   // token, or block
  int base;
  float offset, exponent, rest;
  bool live;
};

template <typename T>
struct Gather {
  const Problem& in;
  const Backward& out;
  GatherShared<T>& shared;
  int batch, level, first_unit, end_unit;  // tokens (level 0) or blocks
  Row row;
  int part, parts;  // of the targets that cover the rows

  using Load = Loader<T, kRows, Product<T>::kColumns>;
  Load loader{in};
  const T* dy = static_cast<const T*>(out.dy) + static_cast<std::int64_t>(batch) * in.targets * in.channels;
  const Weighted* tiled = out.tiled + static_cast<std::int64_t>(batch) * in.tiles * kTile;

  // Adds groups of 32 targets: half tiles begin .. end, or (near) groups of targets as they come.
  template <bool kCareful>
  __device__ void add(Use use, int begin, int end, Product<T>& product, float2& mass) {
    over_groups<kThreads>({in, out, use, batch, level, first_unit, end_unit}, begin, end, part, parts, shared.groups,
                          [&](int count) { process<kCareful>(use, count, product, mass); });
  }

  template <bool kCareful>
  __device__ void process(Use use, int count, Product<T>& product, float2& mass) {
    for (int n = 0; n < kRing; ++n) fetch_targets(use, n, count);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    for (int k = 0; k + 1 < kStages; ++k) fetch_rows(use == Use::near, k, count, k);
    int stage = 0, next = kStages - 1;
    weigh(use, 0, mass);
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
      copy_wait<kStages - 2>();  // rows n and the targets of the rows asked for below are here
      __syncthreads();
      fetch_targets(use, n + kRing, count);
      fetch_rows(use == Use::near, n + kStages - 1, count, next);
      if (n + 1 < count) weigh(use, n + 1, mass);
      if constexpr (kCareful) {
        careful_step(product, shared.a[n & 1], shared.b[stage]);
      } else {
        product.step(shared.a[n & 1], shared.b[stage]);
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
    copy_wait<0>();
  }

  __device__ std::int64_t sequence() const { return static_cast<std::int64_t>(batch) * in.targets; }

  __device__ void fetch_targets(Use use, int n, int count) {
    if (n < count && threadIdx.x < kRows * 2) {
      const int group = shared.groups.list[n], k = threadIdx.x / 2;
      const Weighted* from = tiled + static_cast<std::int64_t>(group) * kRows;
      bool here = true;
      if (use == Use::near) {
        here = group * kRows + k < in.targets;
        from = out.natural + sequence() + (here ? group * kRows : -k);
      }
      auto* to = reinterpret_cast<unsigned char*>(&shared.targets[n % kRing][k]) + threadIdx.x % 2 * 16;
      copy16(to, reinterpret_cast<const unsigned char*>(from + k) + threadIdx.x % 2 * 16, here);
    }
  }

  __device__ void fetch_rows(bool near, int n, int count, int stage) {
    if (n < count) {
      const Weighted* targets = shared.targets[n % kRing] + Load::first_row();
      loader.load(shared.b[stage], Product<T>::kB, blockIdx.y * Product<T>::kColumns, [&](int k) {
        const Weighted& t = targets[k * Load::kStep];
        return RowAt<T>{dy + static_cast<std::int64_t>(t.position - in.first_position()) * loader.channels,
                        t.position >= 0 && (!near || t.level > 0)};
      });
    }
    copy_commit();
  }

  __device__ void weigh(Use use, int n, float2& mass) {
    if (use == Use::own) {
      weigh_as<Use::own>(n, mass);
    } else if (use == Use::near) {
      weigh_as<Use::near>(n, mass);
    } else {
      weigh_as<Use::remainder>(n, mass);
    }
  }

  template <Use kUse>
  __device__ void weigh_as(int n, float2& mass) {
    const int slot = threadIdx.x >> 6;
    const Weighted* targets = shared.targets[n % kRing] + slot * kSlot;
    __align__(16) Pair<T> weight[kSlot / 2];
    float w[2], c[2], part = 0, sum = 0;
#pragma unroll
    for (int k = 0; k < kSlot; ++k) {
      const Weighted t = targets[k];
      bool uses = row.unit >= t.begin && row.unit < t.begin + t.count;
      if (kUse == Use::remainder) uses = takes_remainder(t.position, level, row.unit);
      if (kUse == Use::near) uses = t.level > 0 && row.unit >= near_begin(t.position) && row.unit <= t.position;
      const float d = t.scale * (static_cast<float>(t.position - row.base) - row.offset);
      const float p = t.scale == 0 ? 1.f + 0.f * t.exponent
                                   : power_of_two((row.exponent - t.exponent) + (row.rest - t.rest) - d * d);
      w[k % 2] = uses && row.live ? p : 0.f;
      c[k % 2] = t.c;
      if (k % 2 == 1) {
        weight[k / 2] = Pair<T>::of(w[0], w[1]);
        const float w0 = weight[k / 2].first(), w1 = weight[k / 2].second();
        part += w0 == 0 ? 0.f : w0 * c[0];
        part += w1 == 0 ? 0.f : w1 * c[1];
        sum += w0 + w1;
      }
    }
    mass.x += part;
    mass.y += sum;
    T* a = shared.a[n & 1] + (threadIdx.x & 63) * Product<T>::kA + slot * kSlot;
#pragma unroll
    for (int k = 0; k < static_cast<int>(kSlot * sizeof(T) / 16); ++k) {
      reinterpret_cast<uint4*>(a)[k] = reinterpret_cast<const uint4*>(weight)[k];
    }
  }

  template <bool kCareful>
  __device__ float2 all(Product<T>& product) {
    float2 mass = make_float2(0, 0);  // Gm, Gw
    int own_begin = 0, own_end = in.tiles, end = in.tiles;
    if (in.sorted != nullptr) {
      const int* starts = in.class_tile + batch * (kClasses + 1);
      own_begin = starts[class_of_level(level)];
      own_end = starts[class_of_level(level) + 1];
      end = starts[kClasses];
    }
    const bool near = level == 0 && out.natural != nullptr;
    const int shift = in.first_position();
    const int uses = near || (level > 0 && in.causal) ? 2 : 1;
#pragma unroll 1
    for (int k = 0; k < uses; ++k) {
      const Use use = k == 0 ? Use::own : near ? Use::near : Use::remainder;
      int from = 2 * own_begin, to = 2 * own_end;
      if (use == Use::remainder) {
        from = 2 * own_end;
        to = 2 * end;
      } else if (use == Use::near) {  // those in this block of 64
        from = max(0, first_unit - shift) / kRows;
        to = (min(in.targets, max(0, end_unit - shift)) + kRows - 1) / kRows;
      }
      add<kCareful>(use, from, to, product, mass);
    }
    return mass;
  }

  // Not inlined, and given copies: it must not cost the ordinary path registers.
  __device__ static __noinline__ float2 all_carefully(Gather gather, Product<T>* product) {
    *product = Product<T>();
    return gather.template all<true>(*product);
  }

  // Everything of the 64 rows; this thread's share of its row's mass is left in shared.mass.
  __device__ void run(Product<T>& product) {
    float2 mass = all<false>(product);
    if (__syncthreads_or(!all_finite(product))) {
      Product<T> again;
      mass = all_carefully(*this, &again);
      product = again;
    }
    shared.mass[threadIdx.x >> 6][threadIdx.x & 63] = mass;
    __syncthreads();
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads, kPlainPipe.blocks)
    gather_blocks_kernel(const __grid_constant__ Problem in, const __grid_constant__ Backward out) {
  after_previous();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<GatherShared<T>*>(memory);
  const int batch = blockIdx.x % in.batch;
  if (!uses_tree(in, batch)) return;
  int group = blockIdx.x / in.batch, level = in.tree.last, blocks = 0, parts = 1;
  for (;; --level) {  // 8 blocks a group, in so many parts, level after level, the longest sums first
    blocks = in.tree.count(level);
    parts = in.tree.parts(level);
    if (group < (blocks + 7) / 8 * parts) break;
    group -= (blocks + 7) / 8 * parts;
  }
  const int part = group % parts;
  group /= parts;
  const std::int64_t start = static_cast<std::int64_t>(batch) * in.tree.blocks + in.tree.offset[level - kLeaf];
  const int r = threadIdx.x & 63, block = group * 8 + r / kNodes;
  Row row{block, block << level, node_offset(level, r % kNodes), 0, 0, false};
  if (block < blocks) {
    const float log_weight = in.block_log[start + block];
    row.live = log_weight != minus_infinity();
    row.exponent = block_exponent(log_weight);
  }
  Product<T> product;
  Gather<T> gather{in, out, shared, batch, level, group * 8, min(blocks, group * 8 + 8), row, part, parts};
  gather.run(product);
  const int width = gradient_width(in.channels);
  float* to = out.gradient + in.tree.part_block(batch, level, part, group * 8) * kNodes * width;
  const int rows = min(8, blocks - group * 8) * kNodes, column = blockIdx.y * Product<T>::kColumns;
  product.each([&](int k, int c, float& v0, float& v1) {
    const int r = Product<T>::row(k);
    if (r >= rows || column + c >= width - kMassColumns) return;
    *reinterpret_cast<float2*>(to + r * width + column + c) = make_float2(v0, v1);
  });
  if (blockIdx.y == 0 && static_cast<int>(threadIdx.x) < rows) {
    float2 total = make_float2(0, 0);
    for (int k = 0; k < kRows / kSlot; ++k) {
      total.x += shared.mass[k][threadIdx.x].x;
      total.y += shared.mass[k][threadIdx.x].y;
    }
    auto* last = reinterpret_cast<float4*>(to + threadIdx.x * width + width - kMassColumns);
    last[0] = make_float4(total.x, total.y, 0, 0);
    last[1] = make_float4(0, 0, 0, 0);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kPlainPipe.blocks)
    gather_tokens_kernel(const __grid_constant__ Problem in, const __grid_constant__ Backward out) {
  after_previous();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<GatherShared<T>*>(memory);
  const int batch = blockIdx.x % in.batch, group = blockIdx.x / in.batch, j0 = group * kTile;
  const int j = j0 + (threadIdx.x & 63);
  const float* logs = in.log_weight + static_cast<std::int64_t>(batch) * in.tokens;
  const Exponent exponent(j < in.tokens ? logs[j] : minus_infinity());
  const bool alive = exponent.whole != minus_infinity();
  Product<T> product;
  Gather<T> gather{
      in, out, shared, batch, 0, j0, min(in.tokens, j0 + kTile), Row{j, j, 0, exponent.whole, exponent.rest, alive},
      0,  1};
  gather.run(product);

  constexpr int kColumns = Product<T>::kColumns, kStride = Product<T>::kB;
  constexpr int kPiece = 16 / sizeof(T), kPieces = kColumns / kPiece;
  const int column = blockIdx.y * kColumns;
  const std::int64_t block = static_cast<std::int64_t>(batch) * in.tree.blocks + group;
  const std::int64_t leaf = in.tree.exists() ? in.tree.part_block(batch, kLeaf, 0, group) : 0;
  bool tree = in.tree.exists() && uses_tree(in, batch) && in.block_log[block] != minus_infinity();
  if (tree && isnan(in.block_log[block])) {  // a weight that is no number gives nothing where nothing is asked for
    const int width = gradient_width(in.channels);
    bool some = false;
    for (int k = threadIdx.x; k < kNodes * width; k += kThreads) {
      some = some || out.gradient[leaf * kNodes * width + k] != 0;
    }
    tree = __syncthreads_or(some) != 0;
  }
  if (tree) {
    // dx_j += w_j sum_q L_q(j) G_q as one more product, of which one slot of four is used.
    const int r = threadIdx.x & 63, slot = threadIdx.x >> 6;
    const float w = alive ? exp2f(exponent.minus(block_exponent(in.block_log[block]))) : 0.f;
#pragma unroll
    for (int q = 0; q < kNodes; ++q) {
      const float value = w * kLeafTable.token[r][q];
      if (slot == 0) shared.leaf[r][q] = value;
      shared.a[0][r * Product<T>::kA + slot * kSlot + q] = slot == 0 ? value : 0.f;
    }
    constexpr int kEach = kColumns / 32;  // columns of a thread; a warp has a node
    const int q = threadIdx.x / 32, c = threadIdx.x % 32 * kEach;
    const float* from = out.gradient + (leaf * kNodes + q) * gradient_width(in.channels) + column + c;
    T* to = shared.b[0] + q * kStride + c;
#pragma unroll
    for (int k = 0; k < kEach; k += 4) {
      const float4 v =
          column + c + k < in.channels ? *reinterpret_cast<const float4*>(from + k) : make_float4(0, 0, 0, 0);
      const float value[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        to[k + e] = value[e];
#pragma unroll
        for (int slot = 1; slot < kRows / kSlot; ++slot) to[slot * kSlot * kStride + k + e] = 0;
      }
    }
    __syncthreads();
    product.step(shared.a[0], shared.b[0]);
    __syncthreads();
  }
  T* rows = shared.b[0];
  using Load = Loader<T, kTile, kColumns>;
  const T* x = static_cast<const T*>(in.x) + batch * in.x_batch_stride;
  Load(in).load(rows, kStride, column, [&](int k) {
    const int t = j0 + Load::first_row() + k * Load::kStep;
    return RowAt<T>{x + t * in.x_token_stride, t < in.tokens && logs[min(t, in.tokens - 1)] != minus_infinity()};
  });
  copy_commit();
  float dot[4];
  bool live[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int t = j0 + Product<T>::row(k);
    live[k] = t < in.tokens && logs[t] != minus_infinity();
    dot[k] = 0;
  }
  copy_wait<0>();
  __syncthreads();
  const float* origin = in.origin_of(batch) + column;
  product.each([&](int k, int c, float& v0, float& v1) {
    auto* to = reinterpret_cast<Pair<T>*>(rows + Product<T>::row(k) * kStride + c);
    if (column + c < in.channels && v0 != 0) dot[k] += v0 * (to->first() - origin[c]);
    if (column + c + 1 < in.channels && v1 != 0) dot[k] += v1 * (to->second() - origin[c + 1]);
    *to = Pair<T>::of(live[k] ? v0 : 0.f, live[k] ? v1 : 0.f);
  });
#pragma unroll
  for (int k = 0; k < 4; ++k) shared.share[Product<T>::row(k)][Product<T>::share()] = dot[k];
  __syncthreads();
  T* dx = static_cast<T*>(out.dx) + static_cast<std::int64_t>(batch) * in.tokens * in.channels;
  for (int p = threadIdx.x; p < kTile * kPieces; p += kThreads) {
    const int r = p / kPieces, c = p % kPieces * kPiece, d = column + c;
    if (j0 + r >= in.tokens || d >= in.channels) continue;
    T* to = dx + static_cast<std::int64_t>(j0 + r) * in.channels + d;
    const T* from = rows + r * kStride + c;
    if (in.aligned) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int k = 0; k < kPiece && d + k < in.channels; ++k) to[k] = from[k];
    }
  }
  if (threadIdx.x >= kTile || j >= in.tokens) return;
  float dl = 0, weight = 0;
  if (alive) {
    for (int k = 0; k < 16; ++k) dl += shared.share[threadIdx.x][k];
    if (blockIdx.y == 0) {
      for (int k = 0; k < kRows / kSlot; ++k) {
        dl -= shared.mass[k][threadIdx.x].x;
        weight += shared.mass[k][threadIdx.x].y;
      }
      for (int q = 0; tree && q < kNodes; ++q) {
        const float2 mass = *reinterpret_cast<const float2*>(
            out.gradient + (leaf * kNodes + q + 1) * gradient_width(in.channels) - kMassColumns);
        dl -= shared.leaf[threadIdx.x][q] * mass.x;
        weight += shared.leaf[threadIdx.x][q] * mass.y;
      }
    }
  }
  const std::int64_t token = static_cast<std::int64_t>(batch) * in.tokens + j;
  out.partial[static_cast<std::int64_t>(blockIdx.y) * in.batch * in.tokens + token] = dl;
  if (blockIdx.y == 0) out.weight[token] = weight;
}

// A warp has the bounds of kIndexed half tiles.
__global__ void __launch_bounds__(kThreads)
    index_kernel(const __grid_constant__ Problem in, const int4* bounds, int4* index) {
  after_previous();
  const int size = index_size(in.tiles), lane = static_cast<int>(threadIdx.x) % 32;
  const int g = static_cast<int>((static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32);
  const int batch = g / size, k = g % size;
  if (batch >= in.batch) return;
  const int tiles = in.sorted == nullptr ? in.tiles : in.class_tile[batch * (kClasses + 1) + kClasses];
  int4 all = make_int4(0x7fffffff, 0, 0x7fffffff, -1);
#pragma unroll
  for (int n = 0; n < kIndexed; n += 32) {
    const int h = k * kIndexed + n + lane;
    if (h >= 2 * tiles) continue;
    const int4 one = bounds[static_cast<std::int64_t>(batch) * in.tiles * 2 + h];
    all = make_int4(min(all.x, one.x), max(all.y, one.y), min(all.z, one.z), max(all.w, one.w));
  }
  all.x = __reduce_min_sync(0xffffffffu, all.x);
  all.y = __reduce_max_sync(0xffffffffu, all.y);
  all.z = __reduce_min_sync(0xffffffffu, all.z);
  all.w = __reduce_max_sync(0xffffffffu, all.w);
  if (lane == 0) index[g] = all;
}

}  // namespace

template <typename T>
cudaError_t gather_blocks(const Problem& in, const Backward& out, cudaStream_t stream) {
  int groups = 0;
  for (int k = kLeaf; k <= in.tree.last; ++k) {
    groups += (in.tree.count(k) + 7) / 8 * in.tree.parts(k);
  }
  constexpr int kBytes = shared_bytes<GatherShared<T>>();
  return launch<gather_blocks_kernel<T>>(dim3(groups * in.batch, columns_of<T>(in.channels)), kThreads, kBytes, stream,
                                         in, out);
}

template <typename T>
cudaError_t gather_tokens(const Problem& in, const Backward& out, cudaStream_t stream) {
  constexpr int kBytes = shared_bytes<GatherShared<T>>();
  const dim3 grid((in.tokens + kTile - 1) / kTile * in.batch, columns_of<T>(in.channels));
  const cudaError_t error = launch<gather_tokens_kernel<T>>(grid, kThreads, kBytes, stream, in, out);
  return error != cudaSuccess ? error : balance(in, out, columns_of<T>(in.channels), stream);
}

cudaError_t index_bounds(const Problem& in, const Backward& out, cudaStream_t stream) {
  return launch<index_kernel>(blocks_for(static_cast<std::int64_t>(in.batch) * index_size(in.tiles), kThreads / 32),
                              kThreads, 0, stream, in, static_cast<const int4*>(out.bounds), out.index);
}

template cudaError_t gather_blocks<float>(const Problem&, const Backward&, cudaStream_t);
template cudaError_t gather_tokens<float>(const Problem&, const Backward&, cudaStream_t);

}  // namespace contextpool::cuda
