// The backward, in two passes over the same weights. With Z_i = sum_r a_ir m_r and scores s_ir = dy_i . X_r:
//   c_i = sum_r a_ir s_ir / Z_i,   dsigma_i = sum_r a_ir (t^2 / sigma_i^3) (s_ir - c_i m_r) / Z_i        by target
//   G_r = sum_i (a_ir / Z_i) dy_i,   Gm_r = sum_i (a_ir / Z_i) c_i,   Gw_r = sum_i a_ir / Z_i            by source row
// and then dx_j = w_j G(j), dl_j = x_j . dx_j - w_j Gm(j), with G carried down the tree to the tokens. In float32 x is
// x - origin, but in dx (float32/origin.h), and Gw settles what rounding leaves in dl (float32/balance.h).
#pragma once

#include "kernels/cuda/pool1d/work.cuh"

namespace contextpool::cuda {

// A target as its sources see it: p_ir = 2^(e_r - exponent - rest - (scale t)^2), and 1 where scale is 0. One that has
// nothing to give has no sources and position -1. (Its row of dy is position - first_position.)
struct __align__(16) Weighted {
  float scale;
  float exponent;    // E_i + log2 Z_i; float32: E_i, and
  float rest;        // log2 Z_i (see Exponent)
  int begin, count;  // sources
  int position;
  float c;    // c_i
  int level;  // as of Target
};
static_assert(sizeof(Weighted) == 32);

struct Residue {  // sums over some tokens: of dlog_weight, of weight below, of its square
  double gradient, weight, square;
};

struct Backward {
  const void* dy;       // [batch, targets, channels]
  void* dx;             // [batch, tokens, channels]
  float* dlog_weight;   // [batch, tokens]
  float* dsigma;        // [batch, targets]
  Weighted* by_tile;    // [batch, tiles * kTile], in the order of the tiles
  Weighted* by_target;  // [batch, targets], as they come: those with a level have near tokens
  int4* bounds;         // [batch, tiles * 2]: of each half tile: sources begin, end; first and last position
  int4* index;          // [batch, index_size(tiles)]: the same of kIndexed half tiles together; null: there are few
  float4* near_sums;    // [batch, targets]: Z, sum a s, sum a (ut)^2 s, sum a (ut)^2 m of the near tokens
  float* gradient;      // [batch, part_blocks, 8, gradient_width(channels)]: G, padding, Gm, float32: Gw, padding
  float* partial;       // [columns of tiles, batch, tokens]: shares of dlog_weight; half types, null: there is only one
  float* weight;        // [batch, tokens]: float32: sum_i p_ij
  Residue* residue;     // [batch, balance_chunks(tokens)]: float32: see float32/balance.h
};

__host__ __device__ inline int index_size(int tiles) { return (2 * tiles + kIndexed - 1) / kIndexed; }

// What the sums Z, sum a s, sum a (ut)^2 s, sum a (ut)^2 m of a target lead to; called by threads 0 .. 63 of a tile.
// A target whose dy is 0 (not alive) has no share in any gradient, whatever its sources hold, nor in how the sums of
// the others are split.
template <typename T>
__device__ void finish_target(const Problem& in, Part part, const Backward& out, int batch, int tile,
                              const Target& target, const float (&sums)[4], bool alive) {
  const std::int64_t index = static_cast<std::int64_t>(batch) * in.targets + target.index;
  const bool here = target.index >= 0;
  float total[4] = {sums[0], sums[1], sums[2], sums[3]};
  if (part == Part::near) {
    if (here) out.near_sums[index] = make_float4(total[0], total[1], total[2], total[3]);
    return;
  }
  if (part == Part::far && target.level != 0 && here) {
    const float4 near = out.near_sums[index];
    total[0] += near.x;
    total[1] += near.y;
    total[2] += near.z;
    total[3] += near.w;
  }
  const bool gives = here && alive && total[0] != 0;
  const float inverse = 1.f / total[0], c = total[1] * inverse;
  Weighted weighted{0, 0, 0, 0, 0, -1, 0, 0};
  if (gives) {
    const float log = log2f(total[0]);
    constexpr bool kApart = std::is_same_v<T, float>;
    weighted = {target.scale,
                target.exponent + (kApart ? 0.f : log),
                kApart ? log : 0.f,
                target.begin,
                target.end - target.begin,
                target.position,
                c,
                target.level};
  }
  out.by_tile[(static_cast<std::int64_t>(batch) * in.tiles + tile) * kTile + threadIdx.x] = weighted;
  if (here) {
    const bool moves = gives && target.scale != 0;
    out.dsigma[index] = moves   ? 2 * kLn2 / target.sigma * (total[2] - c * total[3]) * inverse
                        : gives ? total[0] * 0
                                : 0.f;
    if (out.by_target != nullptr) out.by_target[index] = weighted;
  }
  const bool some = weighted.count > 0;
  const int begin = __reduce_min_sync(0xffffffffu, some ? weighted.begin : 0x7fffffff);
  const int end = __reduce_max_sync(0xffffffffu, some ? weighted.begin + weighted.count : 0);
  const int first = __reduce_min_sync(0xffffffffu, gives ? weighted.position : 0x7fffffff);
  const int last = __reduce_max_sync(0xffffffffu, gives ? weighted.position : -1);
  if (threadIdx.x % 32 == 0) {
    out.bounds[(static_cast<std::int64_t>(batch) * in.tiles + tile) * 2 + threadIdx.x / 32] =
        make_int4(begin, end, first, last);
  }
}

// Scores: fills near_sums (near) or dsigma, by_tile, by_target and bounds (all, far).
template <typename T>
cudaError_t score_tiles(const Problem& in, Part part, const Backward& out, cudaStream_t stream);

// gradient of every block, from the targets that use it.
template <typename T>
cudaError_t gather_blocks(const Problem& in, const Backward& out, cudaStream_t stream);

// index, from bounds.
cudaError_t index_bounds(const Problem& in, const Backward& out, cudaStream_t stream);

// dx and dlog_weight.
template <typename T>
cudaError_t gather_tokens(const Problem& in, const Backward& out, cudaStream_t stream);

}  // namespace contextpool::cuda
