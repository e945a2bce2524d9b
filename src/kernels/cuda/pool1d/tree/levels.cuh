// What the kernels that go up and down the tree share: which blocks a thread block has, and the step between a parent
// and its two children,
//
//   parent[q'] = sum over both children c and q of 2^(e_c - e_b) L_q'(node q of c) child_c[q]      (exact: degree 7)
//
// with e_b = ceil(log2 of the block's weight). Going down is the transpose.
#pragma once

#include "kernels/cuda/pool1d/problem.cuh"

namespace contextpool::cuda {

// up[q'][c * 8 + q]: L_q' at node q of child c.
struct RaiseTable {
  float up[kNodes][2 * kNodes] = {};
  constexpr RaiseTable() {
    constexpr double node[kNodes] = {-0.98078528040323044913, -0.83146961230254523708, -0.55557023301960222474,
                                     -0.19509032201612826785, 0.19509032201612826785,  0.55557023301960222474,
                                     0.83146961230254523708,  0.98078528040323044913};
    for (int to = 0; to < kNodes; ++to) {
      for (int from = 0; from < 2 * kNodes; ++from) {
        up[to][from] = static_cast<float>(lagrange(to, 0.5 * node[from % kNodes] + (from < kNodes ? -0.5 : 0.5)));
      }
    }
  }
};
static __constant__ RaiseTable kRaiseTable = RaiseTable();

// 2^(child's exponent - parent's).
__device__ inline float child_scale(float child_log, float parent_log) {
  return child_log == minus_infinity() ? 0.f : exp2f(block_exponent(child_log) - block_exponent(parent_log));
}

struct Place {  // where a thread block stands: blocks from `first` of level `low` on, channels from `column` on
  int batch, first, column;
};
// raise: levels that it goes up or down.
__device__ inline Place place(const Problem& in, int low, int raise, int channels) {
  const int groups = ((in.tokens - 1) >> (low + raise)) + 1;
  const WorkIndex work((channels + kTreeColumns - 1) / kTreeColumns);
  return {work.item / groups, (work.item % groups) << raise, work.part * kTreeColumns};
}
__device__ inline int blocks_at(const Problem& in, int level) {
  return level > in.tree.last ? 0 : in.tree.offset[level - kLeaf + 1] - in.tree.offset[level - kLeaf];
}
__device__ inline std::int64_t block_index(const Problem& in, int batch, int level, int block) {
  return static_cast<std::int64_t>(batch) * in.tree.blocks + in.tree.offset[level - kLeaf] + block;
}

// Thread blocks that go up or down.
inline dim3 tree_grid(const Problem& in, int low, int raise, int channels) {
  const int groups = ((in.tokens - 1) >> (low + raise)) + 1;
  return dim3(groups * in.batch * ((channels + kTreeColumns - 1) / kTreeColumns));
}

}  // namespace contextpool::cuda
