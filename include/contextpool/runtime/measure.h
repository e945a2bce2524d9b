// What work costs on a device: time, and the memory that PyTorch's allocator hands out for it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace contextpool::runtime {

// Waits for everything that was enqueued.
void synchronize(torch::Device device);

// The name of a GPU as its driver gives it; empty where it is not known, and for the CPU.
std::string device_name(torch::Device device);

// What the data sheet says of a GPU of that name, in 1e12 floating-point operations a second: dense matrix products in
// bfloat16, or float32 ones without TF32.
std::optional<double> peak_teraflops(const std::string& device_name, bool bfloat16);

struct Times {
  double seconds = 0;                            // of one call
  double host_seconds = 0;                       // until a call returned that found the device idle
  std::optional<double> device_seconds = {};     // of a GPU, for a call that was enqueued behind others, by its events
  std::optional<double> processor_seconds = {};  // of the CPU's cores together, where they do the work
};

// `calls` of work() one after another, from an idle device until it is idle again; means of one call.
Times time_calls(torch::Device device, int calls, const std::function<void()>& work);

// The most bytes that are allocated at once while work() runs, beyond what was before. On the CPU, of tensors that this
// thread allocates.
std::int64_t peak_of(torch::Device device, const std::function<void()>& work);

}  // namespace contextpool::runtime
