// dx and dlog_weight in float32: the sums of gather.cuh for 64 tokens at a time, and what the tree has for them.
//
//   dx_j = G_j + w_j sum_q L_q(j) G_q,   dl_j = (x_j - origin) . dx_j - Gm_j - w_j sum_q L_q(j) Gm_q,
//
// with G_q, Gm_q of the nodes of the smallest block that holds token j and w_j = 2^(l_j log2(e) - the block's
// exponent). What rounding leaves in dl is settled in balance.cu, from sum_i p_ij, which is made here as well.
#include "kernels/cuda/pool1d/float32/balance.h"
#include "kernels/cuda/pool1d/float32/gather.cuh"

namespace contextpool::cuda {
namespace {

// The 64 tokens of a thread block: one block of the tree's lowest level.
struct TokenTile {
  int batch, group;
  __device__ int first_token() const { return group * kTile; }
};

// Its first channel; not kept in a register while the sums are gathered.
template <typename T>
__device__ int first_column() {
  return blockIdx.y * Product<T>::kColumns;
}

// Whether the block's gradient, from row `leaf` of blocks on, has an element that is not 0.
__device__ bool has_gradient(const Problem& in, const Backward& out, std::int64_t leaf) {
  const int width = gradient_width(in.channels);
  bool some = false;
  for (int k = threadIdx.x; k < kNodes * width; k += kThreads) {
    some = some || out.gradient[leaf * kNodes * width + k] != 0;
  }
  return __syncthreads_or(some) != 0;
}

// dx_j += w_j sum_q L_q(j) G_q as one more product, of which one slot of four is used; w is that of token
// threadIdx.x % 64.
template <typename T>
__device__ void add_leaf(const Problem& in, const Backward& out, std::int64_t leaf, float w, GatherShared<T>& shared,
                         Product<T>& product) {
  constexpr int kColumns = Product<T>::kColumns, kStride = Product<T>::kB;
  const int r = threadIdx.x & 63, slot = threadIdx.x >> 6, column = first_column<T>();
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

// Brings x to shared memory, takes this thread's share of (x_j - origin) . dx_j of its four tokens to shared.dot, and
// leaves dx in place of x; 0 where a token is masked.
template <typename T>
__device__ void dot_with_features(const Problem& in, const TokenTile& at, const float* logs, GatherShared<T>& shared,
                                  Product<T>& product) {
  constexpr int kStride = Product<T>::kB;
  const int j0 = at.first_token(), column = first_column<T>();
  T* rows = shared.b[0];
  using Load = Loader<T, kTile, Product<T>::kColumns>;
  const T* x = static_cast<const T*>(in.x) + in.x_start(at.batch);
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
  const float* origin = in.origin_of(at.batch) + column;
  product.each([&](int k, int c, float& v0, float& v1) {
    auto* to = reinterpret_cast<Pair<T>*>(rows + Product<T>::row(k) * kStride + c);
    if (column + c < in.channels && v0 != 0) dot[k] += v0 * (to->first() - origin[c]);
    if (column + c + 1 < in.channels && v1 != 0) dot[k] += v1 * (to->second() - origin[c + 1]);
    *to = Pair<T>::of(live[k] ? v0 : 0.f, live[k] ? v1 : 0.f);
  });
#pragma unroll
  for (int k = 0; k < 4; ++k) shared.dot[Product<T>::row(k)][Product<T>::thread_of_row()] = dot[k];
}

// dx, in whole rows from shared memory.
template <typename T>
__device__ void write_dx(const Problem& in, const Backward& out, const TokenTile& at, const T* rows) {
  constexpr int kPiece = 16 / sizeof(T), kPieces = Product<T>::kColumns / kPiece;
  const int column = first_column<T>();
  T* dx = static_cast<T*>(out.dx) + in.result_start(at.batch, in.tokens);
#pragma unroll 1
  for (int p = threadIdx.x; p < kTile * kPieces; p += kThreads) {
    const int r = p / kPieces, c = p % kPieces * kPiece, d = column + c;
    if (at.first_token() + r >= in.tokens || d >= in.channels) continue;
    T* to = dx + in.result_at(at.first_token() + r) + d;
    const T* from = rows + r * Product<T>::kB + c;
    if (in.aligned) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int k = 0; k < kPiece && d + k < in.channels; ++k) to[k] = from[k];
    }
  }
}

// What these channels give to dl_j of token j0 + threadIdx.x, and sum_i p_ij; tree: whether the block of 64, from row
// `leaf` of blocks on, has a share in them.
template <typename T>
__device__ void write_dlog_weight(const Problem& in, const Backward& out, const TokenTile& at, bool alive, bool tree,
                                  std::int64_t leaf, const GatherShared<T>& shared) {
  float dl = 0, weight = 0;
  if (alive) {
    for (int k = 0; k < 16; ++k) dl += shared.dot[threadIdx.x][k];
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
  const std::int64_t token = static_cast<std::int64_t>(at.batch) * in.tokens + at.first_token() + threadIdx.x;
  out.partial[static_cast<std::int64_t>(blockIdx.y) * in.batch * in.tokens + token] = dl;
  if (blockIdx.y == 0) out.weight[token] = weight;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kPlainPipe.blocks)
    gather_tokens_kernel(const __grid_constant__ Problem in, const __grid_constant__ Backward out) {
  after_previous();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<GatherShared<T>*>(memory);
  const TokenTile at{static_cast<int>(blockIdx.x % in.batch), static_cast<int>(blockIdx.x / in.batch)};
  const int j0 = at.first_token(), j = j0 + (threadIdx.x & 63);
  const float* logs = in.log_weight + static_cast<std::int64_t>(at.batch) * in.tokens;
  const Exponent exponent(j < in.tokens ? logs[j] : minus_infinity());
  const bool alive = exponent.whole != minus_infinity();
  Product<T> product;
  const Row row{j, j, 0, exponent.whole, exponent.rest, alive};
  Gather<T> gather{in, out, shared, at.batch, 0, j0, min(in.tokens, j0 + kTile), row, 0, 1};
  gather.run(product);

  const std::int64_t block = static_cast<std::int64_t>(at.batch) * in.tree.blocks + at.group;
  const std::int64_t leaf = in.tree.exists() ? in.tree.part_block(at.batch, kLeaf, 0, at.group) : 0;
  bool tree = in.tree.exists() && uses_tree(in, at.batch) && in.block_log[block] != minus_infinity();
  if (tree && isnan(in.block_log[block])) tree = has_gradient(in, out, leaf);  // else a NaN weight gives nothing
  if (tree) {
    const float w = alive ? exp2f(exponent.minus(block_exponent(in.block_log[block]))) : 0.f;
    add_leaf(in, out, leaf, w, shared, product);
  }
  dot_with_features(in, at, logs, shared, product);
  __syncthreads();
  write_dx(in, out, at, shared.b[0]);
  if (threadIdx.x < kTile && j < in.tokens) write_dlog_weight(in, out, at, alive, tree, leaf, shared);
}

}  // namespace

template <typename T>
cudaError_t gather_tokens(const Problem& in, const Backward& out, cudaStream_t stream) {
  constexpr int kBytes = shared_bytes<GatherShared<T>>();
  const dim3 grid((in.tokens + kTile - 1) / kTile * in.batch, columns_of<T>(in.channels));
  const cudaError_t error = launch<gather_tokens_kernel<T>>(grid, kThreads, kBytes, stream, in, out);
  return error != cudaSuccess ? error : balance(in, out, columns_of<T>(in.channels), stream);
}

template cudaError_t gather_tokens<float>(const Problem&, const Backward&, cudaStream_t);

}  // namespace contextpool::cuda
