// The gradients of the tree's blocks in half types: the sums of gather.cuh for the nodes of 8 blocks of a level at a
// time. High levels have few blocks and many targets, so thread blocks share the targets of a level's blocks, in parts
// that tree/down.cu adds up.
#include "kernels/cuda/pool1d/half/gather.cuh"

namespace contextpool::cuda {
namespace {

// kCausal: and there is a tree.
template <typename T, bool kCausal, int columns>
__global__ void __launch_bounds__(kWarpgroup, MatrixGatherShared<T, false, columns>::kPipe.blocks)
    matrix_blocks_kernel(const __grid_constant__ Problem in, const __grid_constant__ Backward out) {
  after_previous();
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<MatrixGatherShared<T, false, columns>*>(memory);
  const WorkIndex work(columns_of<T>(in.channels));
  const int batch = work.item % in.batch, column = work.part * columns;
  const BlockGroup group(in.tree, work.item / in.batch);
  const std::int64_t start = static_cast<std::int64_t>(batch) * in.tree.blocks + in.tree.offset[group.level - kLeaf];
  const int r = threadIdx.x % kTile, block = group.first + r / kNodes;
  // Asked for before it is known whether it is needed: one wait instead of two.
  const float log_weight = block < group.blocks ? in.block_log[start + block] : minus_infinity();
  if (!uses_tree(in, batch)) return;
  const MatrixRow row{log_weight != minus_infinity() ? block : kNoUnit,
                      node_offset(group.level, r % kNodes) + static_cast<float>((r / kNodes) << group.level),
                      block_exponent(log_weight)};
  RowProduct<T, columns> product;
  MatrixGather<T, false, columns> gather{in,          out,         shared,      batch,
                                         group.level, group.first, group.end(), group.first << group.level,
                                         row,         column,      group.part,  group.parts};
  gather.template run<kCausal>(product);
  const int width = gradient_width(in.channels);
  float* to = out.gradient + in.tree.part_block(batch, group.level, group.part, group.first) * kNodes * width;
  const int rows = group.count() * kNodes;
  product.each([&](int c, int k, float& v0, float& v1) {
    const int r = matrix_row(k);
    if (r >= rows || column + c >= width - kMassColumns) return;
    *reinterpret_cast<float2*>(to + r * width + column + c) = make_float2(v0, v1);
  });
  if (work.part == 0 && static_cast<int>(threadIdx.x) < rows) {
    auto* last = reinterpret_cast<float4*>(to + threadIdx.x * width + width - kMassColumns);
    last[0] = make_float4(shared.mass[0][threadIdx.x] + shared.mass[1][threadIdx.x], 0, 0, 0);
    last[1] = make_float4(0, 0, 0, 0);
  }
}

template <typename T, int columns>
cudaError_t gather_columns(const Problem& in, const Backward& out, cudaStream_t stream) {
  constexpr int kBytes = shared_bytes<MatrixGatherShared<T, false, columns>>();
  const dim3 grid(block_groups(in.tree) * in.batch * columns_of<T>(in.channels));
  return in.causal ? launch<matrix_blocks_kernel<T, true, columns>>(grid, kWarpgroup, kBytes, stream, in, out)
                   : launch<matrix_blocks_kernel<T, false, columns>>(grid, kWarpgroup, kBytes, stream, in, out);
}

}  // namespace

template <typename T>
cudaError_t gather_blocks(const Problem& in, const Backward& out, cudaStream_t stream) {
  return in.channels <= TileOf<T>::narrow ? gather_columns<T, TileOf<T>::narrow>(in, out, stream)
                                          : gather_columns<T, TileOf<T>::columns>(in, out, stream);
}

template cudaError_t gather_blocks<__nv_bfloat16>(const Problem&, const Backward&, cudaStream_t);
template cudaError_t gather_blocks<__half>(const Problem&, const Backward&, cudaStream_t);

}  // namespace contextpool::cuda
