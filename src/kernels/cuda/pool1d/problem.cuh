// What pool1d's tiled kernels (float32 and half types) share: the problem as they see it, one record per target, the
// tree's layout.
//
// A target i weighs a source row r (a token, or a node of a block) at position p_r with
//
//   a_ir = 2^(e_r - E_i - (u_i (i - p_r))^2),   u_i = sqrt(log2(e) / 2) / sigma_i,
//   y_i = sum_r a_ir X_r / sum_r a_ir m_r.
//
// Tokens: X = x, m = 1, e = l log2(e). Nodes: X and m are the block's moments, e its exponent. E_i is an integer, so
// that it changes no bit.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/pool1d/tiles.cuh"

namespace contextpool::cuda {

constexpr float kScale = 0.8493218002880191f;  // sqrt(log2(e) / 2)

struct __align__(16) Target {
  float scale;     // u_i; 0 where only the token itself may be a source
  float exponent;  // E_i
  int begin, end;  // sources: tokens, or blocks of `level`
  int position;    // i
  int level;       // 0: tokens
  int index;       // m; -1: padding
  float sigma;
};
static_assert(sizeof(Target) == 32);

// Blocks of 2^k tokens, k = kLeaf .. last; level k starts at block offset[k - kLeaf] of a sequence's `blocks`.
struct Tree {
  int last;    // below kLeaf: there is no tree
  int blocks;  // all levels together, of one sequence
  int offset[kMaxLevels + 1];

  __host__ __device__ bool exists() const { return last >= kLeaf; }
  __host__ __device__ int count(int level) const { return offset[level - kLeaf + 1] - offset[level - kLeaf]; }

  // Gradients of blocks: high levels have few rows and many targets, so they are gathered in parts, added later.
  int part_blocks;  // all levels and parts together, of one sequence
  int part_offset[kMaxLevels];
  int split;  // levels up to this are gathered whole
  __host__ __device__ int parts(int level) const {
    return level <= split ? 1 : level < split + 6 ? 1 << (level - split) : 64;
  }
  __host__ __device__ std::int64_t part_block(int batch, int level, int part, int block) const {
    return static_cast<std::int64_t>(batch) * part_blocks + part_offset[level - kLeaf] + part * count(level) + block;
  }
};

// Channels in fours (16 bytes); those that do not exist are 0.
__host__ __device__ inline int origin_width(int channels) { return (channels + 3) / 4 * 4; }

// One problem: shapes, inputs, and the tree and order made from them. x and nodes are of the storage type.
struct Problem {
  int batch, tokens, targets, channels;
  bool causal;
  bool aligned;  // every row starts at 16 bytes and its channels fill whole pieces of 16 bytes
  const void* x;
  std::int64_t x_batch_stride, x_token_stride, x_group_stride;
  int groups = 1;  // sequences that are groups of one row's channels (see kernels/pool1d.h)
  int result_row;  // from row to row of y, dy and dx: groups * channels
  const float* log_weight;
  const float* sigma;
  Tree tree;
  void* nodes;       // [batch, blocks, 8, channels]
  float* mass;       // [batch, blocks, 8]
  float* block_log;  // [batch, blocks]: log2 of the block's weight; -inf: empty
  float* block_top;  // [batch, blocks]: the largest l log2(e) of its tokens; -inf: empty; NaN: as block_log
  float* group_max;  // [batch, ceil(tokens / 32)]: the largest l log2(e) of 32 tokens; NaN: one is NaN or +inf
  Target* plan;      // [batch, targets]
  Target* sorted;  // [batch, tiles * kTile]: by level, then position; each level has tiles of its own. Null: as planned
  int* may_use_tree;  // [batch]: whether a target may use the tree, by its size; for the tree itself, made beside the
                      // plan
  int* class_tile;    // [batch, kClasses + 1]: first tile of each class (tokens, then the levels)
  int tiles;          // per sequence, at most
  float least_size;   // of targets that use the tree
  float* origin;      // [batch, origin_width(channels)]: float32: features that are taken off x (see float32/origin.h)

  __host__ __device__ int first_position() const { return tokens - targets; }  // of the first target
  // Where sequence b begins: in x, and in what has so many rows a sequence: y, dy, dx.
  __device__ std::int64_t x_start(int b) const { return b / groups * x_batch_stride + b % groups * x_group_stride; }
  __device__ std::int64_t result_start(int b, int rows) const {
    return static_cast<std::int64_t>(b / groups) * rows * result_row + b % groups * channels;
  }
  __device__ std::int64_t result_at(int row) const { return static_cast<std::int64_t>(row) * result_row; }
  __device__ float* origin_of(int b) const { return origin + static_cast<std::int64_t>(b) * origin_width(channels); }
};

// Channels in eights (32 bytes: what memory moves at once), and eight more whose first is the mass.
constexpr int kMassColumns = 8;
__host__ __device__ inline int gradient_width(int channels) { return (channels + 7) / 8 * 8 + kMassColumns; }

__host__ __device__ inline int class_of_level(int level) { return level == 0 ? 0 : level - kLeaf + 1; }
__host__ __device__ inline int level_of_class(int c) { return c == 0 ? 0 : c + kLeaf - 1; }

// A causal target takes whole blocks of its level, then one block of each lower level whose bit is set in i + 1, then
// the tokens left, which begin here.
__host__ __device__ inline int near_begin(int position) { return (position + 1) >> kLeaf << kLeaf; }
__host__ __device__ inline bool takes_remainder(int position, int level, int block) {
  const int ends = (position + 1) >> level;
  return (ends & 1) != 0 && block == ends - 1;
}

// l log2(e) = whole + rest with a whole number in front: one float holds few bits behind the point where l is large.
// (None from 2^23 on; nor has l itself then.)
struct Exponent {
  float whole, rest;
  __device__ explicit Exponent(float log_weight)
      : whole(rintf(log_weight * kLog2e)),
        rest(fabsf(whole) < 8388608.f ? fmaf(log_weight, kLog2e, -whole) + log_weight * kLog2eRest : 0.f) {}
  __device__ float minus(float other) const { return (whole - other) + rest; }
};

// The exponent of a block whose weight has this log2: its moments are then at most about max|x|.
__device__ inline float block_exponent(float log_weight) { return ceilf(log_weight); }

// Chebyshev nodes of the first kind on [-1, 1], ascending.
__device__ constexpr float kChebyshev[kNodes] = {
    -0.98078528040323044913f, -0.83146961230254523708f, -0.55557023301960222474f, -0.19509032201612826785f,
    0.19509032201612826785f,  0.55557023301960222474f,  0.83146961230254523708f,  0.98078528040323044913f};

// L_q(t): 1 at node q, 0 at the others.
constexpr double lagrange(int q, double t) {
  constexpr double node[kNodes] = {-0.98078528040323044913, -0.83146961230254523708, -0.55557023301960222474,
                                   -0.19509032201612826785, 0.19509032201612826785,  0.55557023301960222474,
                                   0.83146961230254523708,  0.98078528040323044913};
  double value = 1;
  for (int m = 0; m < kNodes; ++m) {
    if (m != q) value *= (t - node[m]) / (node[q] - node[m]);
  }
  return value;
}

// token[j][q]: L_q at token j of a smallest block.
struct LeafTable {
  float token[1 << kLeaf][kNodes] = {};
  constexpr LeafTable() {
    for (int j = 0; j < 1 << kLeaf; ++j) {
      for (int q = 0; q < kNodes; ++q) token[j][q] = static_cast<float>(lagrange(q, (2. * j + 1) / (1 << kLeaf) - 1));
    }
  }
};

__device__ constexpr LeafTable kLeafTable;

// Position of node q of a block of 2^level tokens, from the block's first token.
__device__ inline float node_offset(int level, int q) {
  const float half = 0.5f * static_cast<float>(1 << level);
  return half - 0.5f + half * kChebyshev[q];
}

// Whether any target of the sequence uses the tree (known once the targets are sorted).
__device__ inline bool uses_tree(const Problem& in, int batch) {
  const int* starts = in.class_tile + batch * (kClasses + 1);
  return starts[1] != starts[kClasses];
}

// Parts of a tile's width that the channels make.
template <typename T>
__host__ __device__ inline int columns_of(int channels) {
  return (channels + TileOf<T>::columns - 1) / TileOf<T>::columns;
}

// Which piece of work a thread block has, and which of the `across` parts of its channels. Thread blocks that read
// different channels of the same rows stand side by side, for locality in memory.
struct WorkIndex {
  int item, part;
  __device__ explicit WorkIndex(int across)
      : item(static_cast<int>(blockIdx.x) / across), part(static_cast<int>(blockIdx.x) % across) {}
};

// A row in global memory, from its first channel on; invalid: zeros are meant.
template <typename T>
struct RowAt {
  const T* first;
  bool valid;
};

// Brings kRowCount rows of kColumns channels to shared memory; thread t brings pieces of rows first_row(), + kStep, ...
// row(k) is the k-th of them. Members are copies: a kernel's parameters are slow to reach through a reference.
template <typename T, int kRowCount, int kColumns>
struct Loader {
  static constexpr int kPiece = 16 / sizeof(T), kPieces = kColumns / kPiece, kStep = kThreads / kPieces;
  static constexpr int kCount = kRowCount / kStep;
  static_assert(kThreads % kPieces == 0 && kRowCount % kStep == 0);

  int channels;
  bool aligned;
  const void* somewhere;  // any address in global memory

  __device__ explicit Loader(const Problem& in) : channels(in.channels), aligned(in.aligned), somewhere(in.x) {}

  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / kPieces; }

  template <typename Row>
  __device__ void load(T* shared, int stride, int channel, Row row) const {
    const int c = static_cast<int>(threadIdx.x) % kPieces * kPiece, d = channel + c;
    T* to = shared + first_row() * stride + c;
    if (aligned) {
      const bool inside = d < channels;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const RowAt<T> from = row(k);
        const bool valid = inside && from.valid;
        copy16(to + k * kStep * stride, valid ? from.first + d : somewhere, valid);
      }
    } else {
#pragma unroll 1
      for (int k = 0; k < kCount; ++k) {
        const RowAt<T> from = row(k);
        for (int e = 0; e < kPiece; ++e) {
          to[k * kStep * stride + e] = from.valid && d + e < channels ? from.first[d + e] : from_float<T>(0.f);
        }
      }
    }
  }

  // Takes a row of origin_width(channels) off the pieces that this thread has brought, once they are here.
  __device__ void take_off(float* shared, int stride, int channel, const float* row) const {
    const int c = static_cast<int>(threadIdx.x) % kPieces * kPiece, d = channel + c;
    if (d >= channels) return;
    const float4 off = *reinterpret_cast<const float4*>(row + d);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      auto* at = reinterpret_cast<float4*>(shared + (first_row() + k * kStep) * stride + c);
      *at = make_float4(at->x - off.x, at->y - off.y, at->z - off.z, at->w - off.w);
    }
  }
};

}  // namespace contextpool::cuda
