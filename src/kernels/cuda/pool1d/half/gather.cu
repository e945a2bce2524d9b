// The transpose of the forward sum for half types, owned by source rows: 64 rows and 256 channels a thread block gather
// from the targets whose sources include them (32 at a time, weights on the fly, matrix units). No atomics: the same
// bits every run.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/pool1d/gather.cuh"
#include "kernels/cuda/pool1d/half/matrix.cuh"

namespace contextpool::cuda {
namespace {

__device__ const LeafTable kLeafTable = LeafTable();

// kTokens: source rows are tokens, not nodes of blocks.
template <typename T, bool kTokens>
struct GatherShared {
  static constexpr Pipeline kPipe = kTokens ? kTokensPipe : kBlocksPipe;
  static constexpr int kRing = ring_of(kPipe);
  unsigned char rows[kPipe.stages][Wide<T>::kStageBytes];  // at the end of the tokens, from the second on: x, then dx
  unsigned char weights[2][Wide<T>::kWeightBytes];
  Weighted targets[kRing][kRows];
  float mass[2][kTile];
  GroupList<kWarpgroup> groups;
};

constexpr int kNowhere = -(1 << 30);

struct Row {               // row threadIdx.x % 64
  int unit;                // token, or block; kNowhere: no live row
  float offset, exponent;  // its position is origin + offset
};

template <typename T, bool kTokens>
struct Gather {
  static constexpr int kStages = GatherShared<T, kTokens>::kPipe.stages, kRing = GatherShared<T, kTokens>::kRing;
  const Problem& in;
  const Backward& out;
  GatherShared<T, kTokens>& shared;
  int batch, level, first_unit, end_unit;  // tokens (level 0) or blocks
  int origin;                              // first token of the rows
  Row row;
  int column;         // first channel
  int part, parts;    // of the targets that cover the rows
  bool add_ = false;  // the sums hold something

  using Load = PanelLoader<T, kRows, 4>;

  // Adds groups of 32 targets: half tiles begin .. end, or (near) groups of targets as they come.
  template <Use kUse>
  __device__ void add(int begin, int end, bool careful, Wide<T>& product, float& mass) {
    over_groups<kWarpgroup>({in, out, kUse, batch, level, first_unit, end_unit}, begin, end, part, parts, shared.groups,
                            [&](int count) { process<kUse>(count, careful, product, mass); });
  }

  template <Use kUse>
  __device__ void process(int count, bool careful, Wide<T>& product, float& mass) {
    for (int n = 0; n < kRing; ++n) fetch_targets<kUse>(n, count);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int k = 0; k + 1 < kStages; ++k) fetch_rows<kUse>(k, count, k);
    int stage = 0, next = kStages - 1;
    weigh<kUse>(0, mass);
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
      copy_wait<kStages - 2>();  // rows n and the targets of the rows asked for below are here
      publish();
      __syncthreads();
      if (careful) add_strange(product, shared.weights[n & 1], shared.rows[stage]);
      product.start(shared.weights[n & 1], shared.rows[stage], add_);
      add_ = true;
      fetch_targets<kUse>(n + kRing, count);
      fetch_rows<kUse>(n + kStages - 1, count, next);
      if (n + 1 < count) weigh<kUse>(n + 1, mass);
      products_wait();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
    copy_wait<0>();
  }

  template <Use kUse>
  __device__ void fetch_targets(int n, int count) {
    if (n < count && threadIdx.x < kRows * 2) {
      const int k = shared.groups.list[n] * kRows + threadIdx.x / 2;
      const bool here = kUse != Use::near || k < in.targets;
      const Weighted* from = kUse == Use::near
                                 ? out.natural + static_cast<std::int64_t>(batch) * in.targets + (here ? k : 0)
                                 : out.tiled + static_cast<std::int64_t>(batch) * in.tiles * kTile + k;
      auto* to = reinterpret_cast<unsigned char*>(&shared.targets[n % kRing][threadIdx.x / 2]);
      copy16(to + threadIdx.x % 2 * 16, reinterpret_cast<const unsigned char*>(from) + threadIdx.x % 2 * 16, here);
    }
  }

  template <Use kUse>
  __device__ void fetch_rows(int n, int count, int stage) {
    if (n < count) {
      const Weighted* targets = shared.targets[n % kRing] + Load::first_row();
      // What comes after the last channel is not written.
      const int d = min(column + Load::piece() * 8, in.channels - 8);
      const int shift = in.first_position();
      const T* dy = static_cast<const T*>(out.dy) +
                    (static_cast<std::int64_t>(batch) * in.targets - shift) * in.channels + d;  // of position 0
      const auto to = typename Load::To(shared.rows[0]).after(stage * Wide<T>::kStageBytes);
      int position[Load::kCount], least = 0x7fffffff;
#pragma unroll
      for (int k = 0; k < Load::kCount; ++k) {
        position[k] = targets[k * Load::kStep].position;
        least = min(least, position[k]);
      }
      const auto row = [&](int k) { return dy + static_cast<std::int64_t>(position[k]) * in.channels; };
      if (least >= shift) {
        Load::load(to, row);
      } else {  // somebody is nobody
        Load::load(to, true, row, [&](int k) { return position[k] >= shift; });
      }
    }
    copy_commit();
  }

  // 16 targets' weights for this thread's row.
  template <Use kUse>
  __device__ void weigh(int n, float& mass) {
    const int half = static_cast<int>(threadIdx.x) / kTile;
    const Weighted* targets = shared.targets[n % kRing] + half * 2 * kSlot;
#pragma unroll
    for (int slot = 0; slot < 2; ++slot) {
      __align__(16) Pair<T> weight[kSlot / 2];
#pragma unroll
      for (int r = 0; r < kSlot; r += 2) {
        float w[2], c[2];
        bool uses[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const Weighted t = targets[slot * kSlot + r + k];
          const float d = t.scale * (static_cast<float>(t.position - origin) - row.offset);
          w[k] = power_of_two(fmaf(-d, d, row.exponent - t.exponent));
          c[k] = t.c;
          uses[k] = static_cast<unsigned>(row.unit - t.begin) < static_cast<unsigned>(t.count);
          if (kUse == Use::remainder) uses[k] = takes_remainder(t.position, level, row.unit);
          if (kUse == Use::near) uses[k] = t.level > 0 && row.unit >= near_begin(t.position) && row.unit <= t.position;
        }
        const auto pair = Pair<T>::of(uses[0] ? w[0] : 0.f, uses[1] ? w[1] : 0.f);
        if (uses[0]) mass = fmaf(pair.first(), c[0], mass);
        if (uses[1]) mass = fmaf(pair.second(), c[1], mass);
        weight[r / 2] = pair;
      }
      *reinterpret_cast<uint4*>(shared.weights[n & 1] + weight_offset(threadIdx.x % kTile, half * 2 + slot)) =
          *reinterpret_cast<const uint4*>(weight);
    }
  }

  // Everything of the 64 rows; shared.mass: the two parts of each row's mass.
  template <bool kCausal>
  __device__ void run(Wide<T>& product) {
    bool careful = false;
#pragma unroll 1
    while (true) {
      add_ = careful;
      if (careful) product.clear();
      float mass = 0;
      int own_begin = 0, own_end = in.tiles, end = in.tiles;
      if (in.sorted != nullptr) {
        const int* starts = in.class_tile + batch * (kClasses + 1);
        own_begin = starts[class_of_level(level)];
        own_end = starts[class_of_level(level) + 1];
        end = starts[kClasses];
      }
      add<Use::own>(2 * own_begin, 2 * own_end, careful, product, mass);
      if constexpr (kTokens && kCausal) {  // those in this block of 64
        const int shift = in.first_position();
        add<Use::near>(max(0, first_unit - shift) / kRows,
                       (min(in.targets, max(0, end_unit - shift)) + kRows - 1) / kRows, careful, product, mass);
      }
      if constexpr (!kTokens && kCausal) add<Use::remainder>(2 * own_end, 2 * end, careful, product, mass);
      if (!add_) product.clear();
      shared.mass[threadIdx.x / kTile][threadIdx.x % kTile] = mass;
      if (__syncthreads_or(!product.finite()) == 0 || careful) break;
      careful = true;
    }
  }
};

// kCausal: and there is a tree.
template <typename T, bool kCausal>
__global__ void __launch_bounds__(kWarpgroup, kBlocksPipe.blocks)
    matrix_blocks_kernel(const __grid_constant__ Problem in, const __grid_constant__ Backward out) {
  after_previous();
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<GatherShared<T, false>*>(memory);
  const Share share(columns_of<T>(in.channels));
  const int batch = share.work % in.batch, column = share.part * Wide<T>::kColumns;
  int group = share.work / in.batch, level = in.tree.last, blocks = 0, parts = 1;
  for (;; --level) {  // 8 blocks a group, in so many parts, level after level, the longest sums first
    blocks = in.tree.count(level);
    parts = in.tree.parts(level);
    if (group < (blocks + 7) / 8 * parts) break;
    group -= (blocks + 7) / 8 * parts;
  }
  const int part = group % parts;
  group /= parts;
  const std::int64_t start = static_cast<std::int64_t>(batch) * in.tree.blocks + in.tree.offset[level - kLeaf];
  const int r = threadIdx.x % kTile, block = group * 8 + r / kNodes;
  // Asked for before it is known whether it is needed: one wait instead of two.
  const float log_weight = block < blocks ? in.block_log[start + block] : minus_infinity();
  if (!uses_tree(in, batch)) return;
  const Row row{log_weight != minus_infinity() ? block : kNowhere,
                node_offset(level, r % kNodes) + static_cast<float>((r / kNodes) << level), block_exponent(log_weight)};
  Wide<T> product;
  Gather<T, false> gather{
      in,  out,    shared, batch, level, group * 8, min(blocks, group * 8 + 8), (group * 8) << level,
      row, column, part,   parts};
  gather.template run<kCausal>(product);
  const int width = gradient_width(in.channels);
  float* to = out.gradient + in.tree.part_block(batch, level, part, group * 8) * kNodes * width;
  const int rows = min(8, blocks - group * 8) * kNodes;
  product.each([&](int c, int k, float& v0, float& v1) {
    const int r = matrix_row(k);
    if (r >= rows || column + c >= width - kMassColumns) return;
    *reinterpret_cast<float2*>(to + r * width + column + c) = make_float2(v0, v1);
  });
  if (share.part == 0 && static_cast<int>(threadIdx.x) < rows) {
    auto* last = reinterpret_cast<float4*>(to + threadIdx.x * width + width - kMassColumns);
    last[0] = make_float4(shared.mass[0][threadIdx.x] + shared.mass[1][threadIdx.x], 0, 0, 0);
    last[1] = make_float4(0, 0, 0, 0);
  }
}

template <typename T>
struct TokensShared {
  GatherShared<T, true> gather;
  float gradient[kNodes][Wide<T>::kColumns];  // G of the block of 64
  float4 gradient_mass[kNodes];               // Gm, and padding
  float log[kTile];
  unsigned live[kTile / 32];
};

// What G is multiplied by, and the weights divided by, in add_leaf: G may be 128 times as large as dx, and then float16
// could not hold it.
template <typename T>
__device__ float leaf_factor(const float (&gradient)[kNodes][Wide<T>::kColumns]) {
  if constexpr (!std::is_same_v<T, __half>) return 1;
  bool large = false;
  for (int k = threadIdx.x; k < kNodes * Wide<T>::kColumns; k += kWarpgroup) {
    large = large || fabsf(gradient[k / Wide<T>::kColumns][k % Wide<T>::kColumns]) > 0x1p15f;
  }
  return __syncthreads_or(large) != 0 ? 0x1p-8f : 1.f;
}

// dx_j += w_j sum_q L_q(j) G_q as one more product. Both factors are sums of two numbers, h + l: slots of 8 columns
// (rows) hold h, l, h, 0 of the weights and h, h, l, 0 of G.
template <typename T>
__device__ void add_leaf(const float (&gradient)[kNodes][Wide<T>::kColumns], float weight, float factor,
                         unsigned char* a, unsigned char* b, Wide<T>& product) {
  const int r = threadIdx.x % kTile, half = threadIdx.x / kTile;
  __align__(16) Pair<T> high[kNodes / 2], low[kNodes / 2];
  const auto split = [&](const float4& from, float factor, int k) {
    const float4 v = make_float4(factor * from.x, factor * from.y, factor * from.z, factor * from.w);
    high[k] = Pair<T>::of(v.x, v.y);
    high[k + 1] = Pair<T>::of(v.z, v.w);
    low[k] = Pair<T>::of(v.x - high[k].first(), v.y - high[k].second());
    low[k + 1] = Pair<T>::of(v.z - high[k + 1].first(), v.w - high[k + 1].second());
  };
  const auto* table = reinterpret_cast<const float4*>(kLeafTable.token[r]);
#pragma unroll
  for (int k = 0; k < 2; ++k) split(table[k], weight / factor, 2 * k);
  const uint4 none = make_uint4(0, 0, 0, 0);
  *reinterpret_cast<uint4*>(a + weight_offset(r, half * 2)) = *reinterpret_cast<const uint4*>(high);
  *reinterpret_cast<uint4*>(a + weight_offset(r, half * 2 + 1)) =
      half == 0 ? *reinterpret_cast<const uint4*>(low) : none;
  unsigned char* panel = b + lane_id() / 8 * Wide<T>::kPanelBytes;
#pragma unroll 1
  for (int q = warp_id(); q < kNodes; q += 4) {
    const auto* from = reinterpret_cast<const float4*>(gradient[q] + lane_id() * 8);
    split(from[0], factor, 0);
    split(from[1], factor, 2);
    const uint4 h = *reinterpret_cast<const uint4*>(high);
    *reinterpret_cast<uint4*>(panel + panel_offset(q, lane_id() % 8)) = h;
    *reinterpret_cast<uint4*>(panel + panel_offset(8 + q, lane_id() % 8)) = h;
    *reinterpret_cast<uint4*>(panel + panel_offset(16 + q, lane_id() % 8)) = *reinterpret_cast<const uint4*>(low);
    *reinterpret_cast<uint4*>(panel + panel_offset(24 + q, lane_id() % 8)) = none;
  }
  publish();
  __syncthreads();
  product.start(a, b, true);
  products_wait();
}

// kCausal: and there is a tree.
template <typename T, bool kCausal>
__global__ void __launch_bounds__(kWarpgroup, kTokensPipe.blocks)
    matrix_tokens_kernel(const __grid_constant__ Problem in, const __grid_constant__ Backward out) {
  after_previous();
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& own = *reinterpret_cast<TokensShared<T>*>(memory);
  auto& shared = own.gather;
  const Share share(columns_of<T>(in.channels));
  const int batch = share.work % in.batch, group = share.work / in.batch, j0 = group * kTile;
  const int column = share.part * Wide<T>::kColumns;
  // What does not depend on anything is asked for at once.
  const int own_token = j0 + static_cast<int>(threadIdx.x);
  const bool has_token = threadIdx.x < kTile && own_token < in.tokens;
  const float token_weight =
      has_token ? in.log_weight[static_cast<std::int64_t>(batch) * in.tokens + own_token] : minus_infinity();
  bool tree = false;
  float exponent = 0;
  if (in.tree.exists()) {
    const float log_weight = in.block_log[static_cast<std::int64_t>(batch) * in.tree.blocks + group];
    tree = uses_tree(in, batch) && log_weight != minus_infinity();
    exponent = block_exponent(log_weight);
  }
  if (tree) {  // needed at the end, asked for now
    const int width = gradient_width(in.channels);
    const float* from = out.gradient + in.tree.part_block(batch, kLeaf, 0, group) * kNodes * width;
    for (int k = threadIdx.x; k < kNodes * (Wide<T>::kColumns / 4); k += kWarpgroup) {
      const int q = k / (Wide<T>::kColumns / 4), c = k % (Wide<T>::kColumns / 4) * 4;
      copy16(own.gradient[q] + c, from + q * width + column + c, column + c < in.channels);
    }
    if (threadIdx.x < kNodes) {
      copy16(&own.gradient_mass[threadIdx.x], from + (threadIdx.x + 1) * width - kMassColumns, true);
    }
  }
  if (threadIdx.x < kTile) {
    const float log_weight = token_weight * kLog2e;
    own.log[threadIdx.x] = log_weight;
    const unsigned live = __ballot_sync(0xffffffffu, log_weight != minus_infinity());
    if (lane_id() == 0) own.live[warp_id()] = live;
  }
  copy_commit();
  __syncthreads();
  Wide<T> product;
  {
    const int r = threadIdx.x % kTile;
    const float log_weight = own.log[r];
    const Row row{log_weight != minus_infinity() ? j0 + r : kNowhere, static_cast<float>(r), log_weight};
    Gather<T, true> gather{in, out, shared, batch, 0, j0, min(in.tokens, j0 + kTile), j0, row, column, 0, 1};
    gather.template run<kCausal>(product);
  }
  unsigned char* rows = shared.rows[1];  // and on, into the first weights
  static_assert(Staged<T>::kBytes <= (kTokensPipe.stages - 1) * Wide<T>::kStageBytes + Wide<T>::kWeightBytes);
  const int d = column + lane_id() * 8;
  {
    const unsigned live = own.live[warp_id() / 2] >> warp_id() % 2 * 16;
    const T* x =
        static_cast<const T*>(in.x) + batch * in.x_batch_stride + (j0 + warp_id() * 16) * in.x_token_stride + d;
#pragma unroll
    for (int k = 0; k < 16; ++k) {  // a warp brings its 16 rows
      const bool valid = d < in.channels && (live >> k & 1) != 0;
      unsigned char* to = Staged<T>::at(rows, warp_id() * 16 + k, lane_id() * 8);
      copy16(to, x + k * in.x_token_stride, valid);
    }
  }
  copy_commit();
  if (tree && isnan(exponent)) {  // a weight that is no number gives nothing where nothing is asked for
    copy_wait<0>();
    __syncthreads();
    bool some = threadIdx.x < kNodes && own.gradient_mass[threadIdx.x].x != 0;
    for (int k = threadIdx.x; k < kNodes * Wide<T>::kColumns; k += kWarpgroup) {
      some = some || own.gradient[k / Wide<T>::kColumns][k % Wide<T>::kColumns] != 0;
    }
    tree = __syncthreads_or(some) != 0;
  }
  if (tree) {
    copy_wait<1>();  // G and Gm are here: where no target has been processed, nobody has waited for them
    __syncthreads();
    const float log_weight = own.log[threadIdx.x % kTile];
    const float weight = log_weight == minus_infinity() ? 0.f : exp2f(log_weight - exponent);
    add_leaf<T>(own.gradient, weight, leaf_factor<T>(own.gradient), shared.weights[1], shared.rows[0], product);
  }
  copy_wait<0>();
  __syncwarp();
  float dot[2] = {};
  with_staged<T>(product, rows, [&](int k, float& v0, float& v1, Pair<T> value) {
    dot[k] += v0 * value.first() + v1 * value.second();
  });
  if (!isfinite(dot[0]) || !isfinite(dot[1])) {  // what gets no gradient may hold anything
    bool some[2] = {};
    product.each([&](int, int k, float& v0, float& v1) { some[k] = some[k] || v0 != 0 || v1 != 0; });
    for (int k = 0; k < 2; ++k) dot[k] = some[k] ? dot[k] : 0.f;
  }
  bool live[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int r = matrix_row(k), j = j0 + r;
    const float log_weight = own.log[r];
    live[k] = log_weight != minus_infinity();
    dot[k] += __shfl_xor_sync(0xffffffffu, dot[k], 1);
    dot[k] += __shfl_xor_sync(0xffffffffu, dot[k], 2);
    if (lane_id() % 4 != 0 || j >= in.tokens) continue;
    float dl = dot[k];
    if (share.part == 0) {
      dl -= shared.mass[0][r] + shared.mass[1][r];
      if (tree) {
        const float weight = exp2f(log_weight - exponent);
#pragma unroll
        for (int q = 0; q < kNodes; ++q) dl -= weight * kLeafTable.token[r][q] * own.gradient_mass[q].x;
      }
    }
    if (!live[k]) dl = 0;
    const std::int64_t token = static_cast<std::int64_t>(batch) * in.tokens + j;
    if (out.partial == nullptr) {
      out.dlog_weight[token] = dl;
    } else {
      out.partial[static_cast<std::int64_t>(share.part) * in.batch * in.tokens + token] = dl;
    }
  }
  __syncwarp();
  stage<T>(product, rows, [&](int k, float v) { return live[k] ? v : 0.f; });
  write_rows<T>(rows, min(Wide<T>::kColumns, in.channels - column) * static_cast<int>(sizeof(T)), [&](int k) -> T* {
    const int j = j0 + warp_id() * 16 + k;
    return j >= in.tokens
               ? nullptr
               : static_cast<T*>(out.dx) + (static_cast<std::int64_t>(batch) * in.tokens + j) * in.channels + column;
  });
}

// Adds up the shares of dlog_weight.
__global__ void __launch_bounds__(kThreads) sum_kernel(const float* partial, int count, std::int64_t size, float* out) {
  after_previous();
  const std::int64_t k = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= size) return;
  float sum = 0;
  for (int c = 0; c < count; ++c) sum += partial[c * size + k];
  out[k] = sum;
}

}  // namespace

template <typename T>
cudaError_t gather_blocks(const Problem& in, const Backward& out, cudaStream_t stream) {
  int groups = 0;
  for (int k = kLeaf; k <= in.tree.last; ++k) {
    groups += (in.tree.count(k) + 7) / 8 * in.tree.parts(k);
  }
  constexpr int kBytes = shared_bytes<GatherShared<T, false>>();
  const dim3 grid(groups * in.batch * columns_of<T>(in.channels));
  return in.causal ? launch<matrix_blocks_kernel<T, true>>(grid, kWarpgroup, kBytes, stream, in, out)
                   : launch<matrix_blocks_kernel<T, false>>(grid, kWarpgroup, kBytes, stream, in, out);
}

template <typename T>
cudaError_t gather_tokens(const Problem& in, const Backward& out, cudaStream_t stream) {
  constexpr int kBytes = shared_bytes<TokensShared<T>>();
  const dim3 grid((in.tokens + kTile - 1) / kTile * in.batch * columns_of<T>(in.channels));
  const cudaError_t error = out.natural != nullptr
                                ? launch<matrix_tokens_kernel<T, true>>(grid, kWarpgroup, kBytes, stream, in, out)
                                : launch<matrix_tokens_kernel<T, false>>(grid, kWarpgroup, kBytes, stream, in, out);
  if (error != cudaSuccess || out.partial == nullptr) return error;
  const std::int64_t size = static_cast<std::int64_t>(in.batch) * in.tokens;
  return launch<sum_kernel>(blocks_for(size, kThreads), kThreads, 0, stream, out.partial, columns_of<T>(in.channels),
                            size, out.dlog_weight);
}

template cudaError_t gather_blocks<__nv_bfloat16>(const Problem&, const Backward&, cudaStream_t);
template cudaError_t gather_blocks<__half>(const Problem&, const Backward&, cudaStream_t);
template cudaError_t gather_tokens<__nv_bfloat16>(const Problem&, const Backward&, cudaStream_t);
template cudaError_t gather_tokens<__half>(const Problem&, const Backward&, cudaStream_t);

}  // namespace contextpool::cuda
