#include "contextpool/runtime/graph.h"

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace contextpool::runtime {

struct Graph::Recording {
  torch::Device device;
  at::cuda::MempoolId_t pool;
  at::cuda::CUDAGraph graph;
};

namespace {

// A recording that failed leaves the allocator serving its pool, the generator recording, and an error that the next
// call would report.
void clean_up(at::cuda::CUDAGraph& graph, torch::Device device, at::cuda::MempoolId_t pool) {
  try {
    graph.capture_end();
    return;  // what failed was not the recording itself
  } catch (const c10::Error&) {
  }
  try {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device.index(), pool);
  } catch (const c10::Error&) {  // capture_end came as far as that
  }
  auto generator = at::cuda::detail::getDefaultCUDAGenerator(device.index());
  generator.graphsafe_set_state(generator.clone());
  (void)cudaGetLastError();
}

}  // namespace

bool Graph::available(torch::Device device) { return device.is_cuda(); }

Graph::Graph(torch::Device device, const Graph* before)
    : recording_(new Recording{device, before != nullptr ? before->recording_->pool : at::cuda::graph_pool_handle(),
                               at::cuda::CUDAGraph()}) {
  if (!device.has_index()) recording_->device = torch::Device(torch::kCUDA, c10::cuda::current_device());
}

Graph::~Graph() = default;

void Graph::record(const std::function<void()>& work) {
  auto& [device, pool, graph] = *recording_;
  const c10::cuda::CUDAGuard guard(device);
  c10::cuda::device_synchronize();
  // A graph has memory of its own: that which was used by the same work before is given back.
  c10::cuda::CUDACachingAllocator::emptyCache();
  // The default stream cannot be recorded.
  const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()));
  // Relaxed: other threads load batches, for which they take pinned memory.
  graph.capture_begin(pool, cudaStreamCaptureModeRelaxed);
  try {
    work();
  } catch (...) {
    clean_up(graph, device, pool);
    throw;
  }
  try {
    graph.capture_end();
  } catch (...) {
    clean_up(graph, device, pool);
    throw;
  }
}

void Graph::replay() { recording_->graph.replay(); }

}  // namespace contextpool::runtime
