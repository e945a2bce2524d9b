// The gradients of the tree's blocks in float32: the sums of gather.cuh for the nodes of 8 blocks of a level at a time.
// High levels have few blocks and many targets, so thread blocks share the targets of a level's blocks, in parts that
// tree/down.cu adds up.
#include "kernels/cuda/pool1d/float32/gather.cuh"

namespace contextpool::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads, kPlainPipe.blocks)
    gather_blocks_kernel(const __grid_constant__ Problem in, const __grid_constant__ Backward out) {
  after_previous();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<GatherShared<T>*>(memory);
  const int batch = blockIdx.x % in.batch;
  if (!uses_tree(in, batch)) return;
  const BlockGroup group(in.tree, blockIdx.x / in.batch);
  const std::int64_t start = static_cast<std::int64_t>(batch) * in.tree.blocks + in.tree.offset[group.level - kLeaf];
  const int r = threadIdx.x & 63, block = group.first + r / kNodes;
  Row row{block, block << group.level, node_offset(group.level, r % kNodes), 0, 0, false};
  if (block < group.blocks) {
    const float log_weight = in.block_log[start + block];
    row.live = log_weight != minus_infinity();
    row.exponent = block_exponent(log_weight);
  }
  Product<T> product;
  Gather<T> gather{in, out, shared, batch, group.level, group.first, group.end(), row, group.part, group.parts};
  gather.run(product);
  const int width = gradient_width(in.channels);
  float* to = out.gradient + in.tree.part_block(batch, group.level, group.part, group.first) * kNodes * width;
  const int rows = group.count() * kNodes, column = blockIdx.y * Product<T>::kColumns;
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

}  // namespace

template <typename T>
cudaError_t gather_blocks(const Problem& in, const Backward& out, cudaStream_t stream) {
  constexpr int kBytes = shared_bytes<GatherShared<T>>();
  return launch<gather_blocks_kernel<T>>(dim3(block_groups(in.tree) * in.batch, columns_of<T>(in.channels)), kThreads,
                                         kBytes, stream, in, out);
}

template cudaError_t gather_blocks<float>(const Problem&, const Backward&, cudaStream_t);

}  // namespace contextpool::cuda
