// The backward, in two passes over the same weights. With Z_i = sum_r a_ir m_r and scores s_ir = dy_i . X_r:
//   c_i = sum_r a_ir s_ir / Z_i,   dsigma_i = sum_r a_ir (t^2 / sigma_i^3) (s_ir - c_i m_r) / Z_i        by target
//   G_r = sum_i (a_ir / Z_i) dy_i,   Gm_r = sum_i (a_ir / Z_i) c_i                                       by source row
// and then dx_j = w_j G(j), dl_j = x_j . dx_j - w_j Gm(j), with G carried down the tree to the tokens.
#pragma once

#include "kernels/cuda/work.cuh"

namespace contextpool::cuda {

// A target as its sources see it.
struct __align__(16) Weighted {
  float scale, exponent;
  int begin, end;
  int position;
  int index;      // -1: nobody, or nothing to give
  float c;        // c_i
  float inverse;  // 1 / Z_i
};
static_assert(sizeof(Weighted) == 32);

struct Backward {
  const void* dy;      // [batch, targets, channels]
  void* dx;            // [batch, tokens, channels]
  float* dlog_weight;  // [batch, tokens]
  float* dsigma;       // [batch, targets]
  Weighted* tiled;     // [batch, tiles * kTile], in the order of the tiles
  Weighted* natural;   // [batch, targets], as they come: causal targets of the tree (index -1: others)
  int4* bounds;        // [batch, tiles * 2]: of each half tile: sources begin, end; first and last position
  float4* near_sums;   // [batch, targets]: Z, sum a s, sum a (ut)^2 s, sum a (ut)^2 m of the near tokens
  float* gradient;     // [batch, part_blocks, 8, gradient_width(channels)]: G, padding, Gm, padding
  float* partial;      // [columns of tiles, batch, tokens]: shares of dlog_weight; null: there is only one
};

// Scores: fills near_sums (near) or dsigma, tiled, natural and bounds (all, far).
template <typename T>
cudaError_t score_tiles(const Problem& in, Part part, const Backward& out, cudaStream_t stream);

// gradient of every block, from the targets that use it.
template <typename T>
cudaError_t gather_blocks(const Problem& in, const Backward& out, cudaStream_t stream);

// dx and dlog_weight.
template <typename T>
cudaError_t gather_tokens(const Problem& in, const Backward& out, cudaStream_t stream);

}  // namespace contextpool::cuda
