// Which operators the time of some work goes to, by PyTorch's profiler.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace contextpool::runtime {

// An operator by its own time: without the operators that it called. On a GPU, the time of the kernels that it
// launched.
struct OperatorTime {
  std::string name;  // "aten::addmm"
  std::int64_t calls = 0;
  double seconds = 0;
};

// Those of work(), the longest first. Profiling makes the work itself slower on the CPU.
std::vector<OperatorTime> profile(torch::Device device, const std::function<void()>& work);

// The kind of work that an operator (or, where its operator is not known, a kernel) does: "matrix products".
std::string kind_of_operator(const std::string& name);

}  // namespace contextpool::runtime
