#include "contextpool/runtime/graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace contextpool::runtime {

// A chain has one stream: the allocator gives memory that was freed on a stream to work on the same one only.
struct Graph::Recording {
  c10::cuda::CUDAStream stream;
  at::cuda::MempoolId_t pool;
  at::cuda::CUDAGraph graph;
};

namespace {

bool succeeds(const std::function<void()>& call) {
  try {
    call();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// A recording that failed leaves the allocators, of the device and of pinned memory, serving its pool, the generator
// recording, and an error that the next call would report.
void clean_up(at::cuda::CUDAGraph& graph, c10::DeviceIndex device, at::cuda::MempoolId_t pool) {
  if (succeeds([&] { graph.capture_end(); })) return;  // what failed was not the recording itself
  // Where capture_end came as far as that, these fail, and the graph releases the pool.
  succeeds([&] {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
    c10::cuda::CUDACachingAllocator::releasePool(device, pool);
  });
  succeeds([&] {
    auto* pinned = at::getHostAllocator(at::kCUDA);
    pinned->end_allocate_to_pool(pool);
    pinned->release_pool(pool);
  });
  auto generator = at::cuda::detail::getDefaultCUDAGenerator(device);
  generator.graphsafe_set_state(generator.clone());
  (void)cudaGetLastError();
}

}  // namespace

bool Graph::available(torch::Device device) { return device.is_cuda(); }

// The default stream cannot be recorded.
Graph::Graph(torch::Device device, const Graph* before)
    : recording_(before != nullptr
                     ? new Recording{before->recording_->stream, before->recording_->pool, at::cuda::CUDAGraph()}
                     : new Recording{c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()),
                                     at::cuda::graph_pool_handle(), at::cuda::CUDAGraph()}) {}

Graph::~Graph() = default;

void Graph::record(const std::function<void()>& work) {
  auto& [stream, pool, graph] = *recording_;
  const c10::cuda::CUDAStreamGuard guard(stream);
  c10::cuda::device_synchronize();
  // A graph has memory of its own: that which was used by the same work before is given back.
  c10::cuda::CUDACachingAllocator::emptyCache();
  try {
    // Relaxed: other threads load batches, for which they take pinned memory.
    graph.capture_begin(pool, cudaStreamCaptureModeRelaxed);
    work();
    graph.capture_end();
  } catch (...) {
    clean_up(graph, stream.device_index(), pool);
    throw;
  }
}

void Graph::replay() { recording_->graph.replay(); }

}  // namespace contextpool::runtime
