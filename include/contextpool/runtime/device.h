// Where a model computes, in which precision, and how much memory that took.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>

namespace contextpool::runtime {

// "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:N".
torch::Device device_named(const std::string& name);

// The most memory in use so far: of the process on the CPU, of PyTorch's allocator on a GPU. Bytes.
std::int64_t peak_memory(torch::Device device);

// All the memory that there is: of the machine or its container, or of a GPU. Bytes; 0 where it is not known.
std::int64_t total_memory(torch::Device device);

// While it lives, matrix products and the like are done in bfloat16, if `on`.
class Autocast {
 public:
  Autocast(torch::Device device, bool on);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType type_;
  bool enabled_before_;
  torch::ScalarType type_before_;
};

}  // namespace contextpool::runtime
