// In builds without CUDA.
#include "contextpool/runtime/graph.h"

namespace contextpool::runtime {

struct Graph::Recording {};

bool Graph::available(torch::Device /*device*/) { return false; }

Graph::Graph(torch::Device /*device*/, const Graph* /*before*/) {
  TORCH_CHECK(false, "contextpool: this build has no CUDA graphs");
}
Graph::~Graph() = default;

void Graph::record(const std::function<void()>& /*work*/) {}
void Graph::replay() {}

}  // namespace contextpool::runtime
