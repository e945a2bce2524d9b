// What a piece of work enqueues on a GPU, recorded once and launched again and again as one CUDA graph: instead of a
// thousand kernels, the host launches one thing.
//
// The work must enqueue the same each time, on tensors that stay where they are: inputs are filled (copy_, fill_)
// before a replay, results are in tensors that the recorded work made. It may not wait for the device. Random numbers
// are those that the work would draw from torch's generator as it stands when it is replayed.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>

namespace contextpool::runtime {

class Graph {
 public:
  // Whether work of that device can be recorded: on CUDA, in a build with CUDA.
  static bool available(torch::Device device);

  // Graphs of a chain share memory. They are recorded in their order, and replayed in it: a graph's memory is what it
  // left only until the first of its chain runs again.
  explicit Graph(torch::Device device, const Graph* before = nullptr);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Calls `work`, which runs nothing on the device. Throws what it throws, and where something cannot be recorded; the
  // device and torch's generator are then as usable as before, and this graph is not.
  void record(const std::function<void()>& work);
  void replay();

 private:
  struct Recording;
  std::unique_ptr<Recording> recording_;
};

}  // namespace contextpool::runtime
