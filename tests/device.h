// The device that the tests of nn and of the layers above it work on: CONTEXTPOOL_TEST_DEVICE, else the CPU. One body
// for all devices: scripts/test.py and scripts/gpu.sh run each program once for each.
#pragma once

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cstdlib>
#include <string_view>

namespace contextpool::testing {

inline torch::Device device() {
  static const torch::Device chosen = [] {
    const char* const name = std::getenv("CONTEXTPOOL_TEST_DEVICE");
    at::globalContext().setAllowTF32CuDNN(false);  // convolutions in the float32 that tolerances are for
    return torch::Device(name == nullptr ? "cpu" : name);
  }();
  return chosen;
}

// Tests of the CPU see no GPU, whatever the machine has: with one in view, the first backward starts threads for it,
// and a process with these cannot be forked (resume_test.cpp does). Done before main, as CUDA asks once.
inline const bool gpus_are_hidden = [] {
  const char* const name = std::getenv("CONTEXTPOOL_TEST_DEVICE");
  const bool hide = name == nullptr || std::string_view(name) == "cpu";
  if (hide) ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  return hide;
}();

inline bool on_cpu() { return device().is_cpu(); }

inline torch::Tensor there(const torch::Tensor& t) { return t.to(device()); }

template <typename Module>
Module on_device(Module module) {
  module->to(device());
  return module;
}

// Autocast to bfloat16 on that device while it lives.
class BFloat16 {
 public:
  BFloat16() {
    at::autocast::set_autocast_dtype(device().type(), torch::kBFloat16);
    at::autocast::set_autocast_enabled(device().type(), true);
  }
  ~BFloat16() {
    at::autocast::set_autocast_enabled(device().type(), false);
    at::autocast::clear_cache();
  }
  BFloat16(const BFloat16&) = delete;
  BFloat16& operator=(const BFloat16&) = delete;
};

}  // namespace contextpool::testing
