// The backends of a process group: a file each, with a stub where torch lacks one.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace contextpool::runtime {

using Store = c10::intrusive_ptr<c10d::Store>;
using Backend = c10::intrusive_ptr<c10d::Backend>;

Backend make_gloo(const Store& store, int rank, int size, std::chrono::milliseconds timeout);
// Throws where the program was built without NCCL.
Backend make_nccl(const Store& store, int rank, int size, torch::Device device);

}  // namespace contextpool::runtime
