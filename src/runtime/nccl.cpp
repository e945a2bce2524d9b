// NCCL, as torch carries it.
#define USE_C10D_NCCL  // without which the header is empty
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "runtime/group.h"

namespace contextpool::runtime {

Backend make_nccl(const Store& store, int rank, int size, torch::Device device) {
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  const auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  backend->setBoundDeviceId(device);
  return backend;
}

}  // namespace contextpool::runtime
