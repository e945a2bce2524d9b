// dx and dlog_weight in half types: the sums of gather.cuh for 64 tokens at a time, and what the tree has for them.
//
//   dx_j = G_j + w_j sum_q L_q(j) G_q,   dl_j = x_j . dx_j - Gm_j - w_j sum_q L_q(j) Gm_q,
//
// with G_q, Gm_q of the nodes of the smallest block that holds token j and w_j = 2^(l_j log2(e) - the block's
// exponent).
#include "kernels/cuda/pool1d/half/gather.cuh"

namespace contextpool::cuda {
namespace {

template <typename T, int columns>
struct TokensShared {
  MatrixGatherShared<T, true, columns> gather;
  float gradient[kNodes][columns];  // G of the block of 64
  float4 gradient_mass[kNodes];     // Gm, and padding
  float log[kTile];                 // l log2(e)
  unsigned live[kTile / 32];
};

// The 64 tokens, one block of the tree's lowest level, and channels of a thread block.
struct TokenTile {
  int batch, group, column;
  int part;  // which of the parts of the channels
  __device__ int first_token() const { return group * kTile; }
};

// Asks for G and Gm of the block of 64.
template <typename T, int columns>
__device__ void fetch_block_gradient(const Problem& in, const Backward& out, const TokenTile& at,
                                     TokensShared<T, columns>& shared) {
  const int width = gradient_width(in.channels);
  const float* from = out.gradient + in.tree.part_block(at.batch, kLeaf, 0, at.group) * kNodes * width;
  for (int k = threadIdx.x; k < kNodes * (columns / 4); k += kWarpgroup) {
    const int q = k / (columns / 4), c = k % (columns / 4) * 4;
    copy16(shared.gradient[q] + c, from + q * width + at.column + c, at.column + c < in.channels);
  }
  if (threadIdx.x < kNodes) {
    copy16(&shared.gradient_mass[threadIdx.x], from + (threadIdx.x + 1) * width - kMassColumns, true);
  }
}

// Keeps the logarithms of the weights, and a bit for each token that is not masked.
template <typename T, int columns>
__device__ void store_logs(float token_weight, TokensShared<T, columns>& shared) {
  if (threadIdx.x < kTile) {
    const float log_weight = token_weight * kLog2e;
    shared.log[threadIdx.x] = log_weight;
    const unsigned live = __ballot_sync(0xffffffffu, log_weight != minus_infinity());
    if (lane_id() == 0) shared.live[warp_id()] = live;
  }
}

// Asks for the features of the tokens that are not masked; each warp brings its 16 rows.
template <typename T, int columns>
__device__ void fetch_features(const Problem& in, const TokenTile& at, const TokensShared<T, columns>& shared,
                               unsigned char* rows) {
  const unsigned live = shared.live[warp_id() / 2] >> warp_id() % 2 * 16;
  const T* x = static_cast<const T*>(in.x) + in.x_start(at.batch) +
               (at.first_token() + warp_id() * 16) * in.x_token_stride + at.column;
  each_piece<columns>([&](int k, int c) {
    const bool valid = at.column + c < in.channels && (live >> k & 1) != 0;
    copy16(Staged<T, columns>::at(rows, warp_id() * 16 + k, c), x + k * in.x_token_stride + c, valid);
  });
}

// Whether the block of 64 has a gradient that is not 0.
template <typename T, int columns>
__device__ bool has_gradient(const TokensShared<T, columns>& shared) {
  bool some = threadIdx.x < kNodes && shared.gradient_mass[threadIdx.x].x != 0;
  for (int k = threadIdx.x; k < kNodes * columns; k += kWarpgroup) {
    some = some || shared.gradient[k / columns][k % columns] != 0;
  }
  return __syncthreads_or(some) != 0;
}

// What G is multiplied by, and the weights divided by, in add_leaf: G may be 128 times as large as dx, and then float16
// could not hold it.
template <typename T, int columns>
__device__ float leaf_factor(const float (&gradient)[kNodes][columns]) {
  if constexpr (!std::is_same_v<T, __half>) return 1;
  bool large = false;
  for (int k = threadIdx.x; k < kNodes * columns; k += kWarpgroup) {
    large = large || fabsf(gradient[k / columns][k % columns]) > 0x1p15f;
  }
  return __syncthreads_or(large) != 0 ? 0x1p-8f : 1.f;
}

// dx_j += w_j sum_q L_q(j) G_q as one more product. Both factors are sums of two numbers, h + l: slots of 8 columns
// (rows) hold h, l, h, 0 of the weights and h, h, l, 0 of G.
template <typename T, int columns>
__device__ void add_leaf(const float (&gradient)[kNodes][columns], float weight, float factor, unsigned char* a,
                         unsigned char* b, RowProduct<T, columns>& product) {
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
  constexpr int kPieces = columns / 8;  // of a row
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  unsigned char* panel = b + piece / 8 * RowProduct<T, columns>::kPanelBytes;
#pragma unroll 1
  for (int q = static_cast<int>(threadIdx.x) / kPieces; q < kNodes; q += kWarpgroup / kPieces) {
    const auto* from = reinterpret_cast<const float4*>(gradient[q] + piece * 8);
    split(from[0], factor, 0);
    split(from[1], factor, 2);
    const uint4 h = *reinterpret_cast<const uint4*>(high);
    *reinterpret_cast<uint4*>(panel + panel_offset(q, piece % 8)) = h;
    *reinterpret_cast<uint4*>(panel + panel_offset(8 + q, piece % 8)) = h;
    *reinterpret_cast<uint4*>(panel + panel_offset(16 + q, piece % 8)) = *reinterpret_cast<const uint4*>(low);
    *reinterpret_cast<uint4*>(panel + panel_offset(24 + q, piece % 8)) = none;
  }
  publish();
  __syncthreads();
  product.start(a, b, true);
  products_wait();
}

// This thread's share of x_j . dx_j of its two tokens; the staged rows hold x.
template <typename T, int columns>
__device__ void dot_with_features(RowProduct<T, columns>& product, unsigned char* rows, float (&dot)[2]) {
  with_staged(product, rows,
              [&](int k, float& v0, float& v1, Pair<T> value) { dot[k] += v0 * value.first() + v1 * value.second(); });
  if (!isfinite(dot[0]) || !isfinite(dot[1])) {  // what gets no gradient may hold anything
    bool some[2] = {};
    product.each([&](int, int k, float& v0, float& v1) { some[k] = some[k] || v0 != 0 || v1 != 0; });
    for (int k = 0; k < 2; ++k) dot[k] = some[k] ? dot[k] : 0.f;
  }
}

// dl of this thread's two tokens, or what these channels give to it; live: which of the two are not masked.
template <typename T, int columns>
__device__ void write_dlog_weight(const Problem& in, const Backward& out, const TokenTile& at,
                                  const TokensShared<T, columns>& shared, bool tree, float exponent, float (&dot)[2],
                                  bool (&live)[2]) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int r = matrix_row(k), j = at.first_token() + r;
    const float log_weight = shared.log[r];
    live[k] = log_weight != minus_infinity();
    dot[k] += __shfl_xor_sync(0xffffffffu, dot[k], 1);
    dot[k] += __shfl_xor_sync(0xffffffffu, dot[k], 2);
    if (lane_id() % 4 != 0 || j >= in.tokens) continue;
    float dl = dot[k];
    if (at.part == 0) {
      dl -= shared.gather.mass[0][r] + shared.gather.mass[1][r];
      if (tree) {
        const float weight = exp2f(log_weight - exponent);
#pragma unroll
        for (int q = 0; q < kNodes; ++q) dl -= weight * kLeafTable.token[r][q] * shared.gradient_mass[q].x;
      }
    }
    if (!live[k]) dl = 0;
    const std::int64_t token = static_cast<std::int64_t>(at.batch) * in.tokens + j;
    if (out.partial == nullptr) {
      out.dlog_weight[token] = dl;
    } else {
      out.partial[static_cast<std::int64_t>(at.part) * in.batch * in.tokens + token] = dl;
    }
  }
}

// dx, in whole rows through shared memory; 0 where a token is masked.
template <typename T, int columns>
__device__ void write_dx(const Problem& in, const Backward& out, const TokenTile& at, const bool (&live)[2],
                         unsigned char* rows, RowProduct<T, columns>& product) {
  stage(product, rows, [&](int k, float v) { return live[k] ? v : 0.f; });
  const int bytes = min(columns, in.channels - at.column) * static_cast<int>(sizeof(T));
  T* dx = static_cast<T*>(out.dx) + in.result_start(at.batch, in.tokens) + at.column;
  write_rows<T, columns>(rows, bytes, [&](int k) -> T* {
    const int j = at.first_token() + warp_id() * 16 + k;
    if (j >= in.tokens) return nullptr;
    return dx + in.result_at(j);
  });
}

// kCausal: and there is a tree.
template <typename T, bool kCausal, int columns>
__global__ void __launch_bounds__(kWarpgroup, MatrixGatherShared<T, true, columns>::kPipe.blocks)
    matrix_tokens_kernel(const __grid_constant__ Problem in, const __grid_constant__ Backward out) {
  after_previous();
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<TokensShared<T, columns>*>(memory);
  const WorkIndex work(columns_of<T>(in.channels));
  const TokenTile at{work.item % in.batch, work.item / in.batch, work.part * columns, work.part};
  const int j0 = at.first_token();
  // What does not depend on anything is asked for at once.
  const int own_token = j0 + static_cast<int>(threadIdx.x);
  const bool has_token = threadIdx.x < kTile && own_token < in.tokens;
  const float token_weight =
      has_token ? in.log_weight[static_cast<std::int64_t>(at.batch) * in.tokens + own_token] : minus_infinity();
  bool tree = false;
  float exponent = 0;
  if (in.tree.exists()) {
    const float log_weight = in.block_log[static_cast<std::int64_t>(at.batch) * in.tree.blocks + at.group];
    tree = uses_tree(in, at.batch) && log_weight != minus_infinity();
    exponent = block_exponent(log_weight);
  }
  if (tree) fetch_block_gradient(in, out, at, shared);  // needed at the end, asked for now
  store_logs(token_weight, shared);
  copy_commit();
  __syncthreads();
  RowProduct<T, columns> product;
  {
    const int r = threadIdx.x % kTile;
    const float log_weight = shared.log[r];
    const MatrixRow row{log_weight != minus_infinity() ? j0 + r : kNoUnit, static_cast<float>(r), log_weight};
    MatrixGather<T, true, columns> gather{in, out, shared.gather, at.batch, 0, j0, min(in.tokens, j0 + kTile),
                                          j0, row, at.column,     0,        1};
    gather.template run<kCausal>(product);
  }
  unsigned char* rows = shared.gather.rows[1];  // and on, into the first weights
  static_assert(Staged<T, columns>::kBytes <=
                sizeof(shared.gather.rows) - sizeof(shared.gather.rows[0]) + sizeof(shared.gather.weights[0]));
  fetch_features(in, at, shared, rows);
  copy_commit();
  if (tree && isnan(exponent)) {  // a NaN weight gives nothing where no gradient asks for it
    copy_wait<0>();
    __syncthreads();
    tree = has_gradient(shared);
  }
  if (tree) {
    copy_wait<1>();  // G and Gm are here: where no target has been processed, nothing has waited for them
    __syncthreads();
    const float log_weight = shared.log[threadIdx.x % kTile];
    const float weight = log_weight == minus_infinity() ? 0.f : exp2f(log_weight - exponent);
    add_leaf(shared.gradient, weight, leaf_factor<T, columns>(shared.gradient), shared.gather.weights[1],
             shared.gather.rows[0], product);
  }
  copy_wait<0>();
  __syncwarp();
  float dot[2] = {};
  bool live[2];
  dot_with_features(product, rows, dot);
  write_dlog_weight(in, out, at, shared, tree, exponent, dot, live);
  __syncwarp();
  write_dx(in, out, at, live, rows, product);
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

template <typename T, int columns>
cudaError_t gather_columns(const Problem& in, const Backward& out, cudaStream_t stream) {
  constexpr int kBytes = shared_bytes<TokensShared<T, columns>>();
  const dim3 grid((in.tokens + kTile - 1) / kTile * in.batch * columns_of<T>(in.channels));
  return out.by_target != nullptr
             ? launch<matrix_tokens_kernel<T, true, columns>>(grid, kWarpgroup, kBytes, stream, in, out)
             : launch<matrix_tokens_kernel<T, false, columns>>(grid, kWarpgroup, kBytes, stream, in, out);
}

}  // namespace

template <typename T>
cudaError_t gather_tokens(const Problem& in, const Backward& out, cudaStream_t stream) {
  const cudaError_t error = in.channels <= TileOf<T>::narrow ? gather_columns<T, TileOf<T>::narrow>(in, out, stream)
                                                             : gather_columns<T, TileOf<T>::columns>(in, out, stream);
  if (error != cudaSuccess || out.partial == nullptr) return error;
  const std::int64_t size = static_cast<std::int64_t>(in.batch) * in.tokens;
  return launch<sum_kernel>(blocks_for(size, kThreads), kThreads, 0, stream, out.partial, columns_of<T>(in.channels),
                            size, out.dlog_weight);
}

template cudaError_t gather_tokens<__nv_bfloat16>(const Problem&, const Backward&, cudaStream_t);
template cudaError_t gather_tokens<__half>(const Problem&, const Backward&, cudaStream_t);

}  // namespace contextpool::cuda
