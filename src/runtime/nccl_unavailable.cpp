// The answer of a build without NCCL.
#include <c10/util/Exception.h>

#include "runtime/group.h"

namespace contextpool::runtime {

Backend make_nccl(const Store& /*store*/, int /*rank*/, int /*size*/, torch::Device device) {
  TORCH_CHECK(
      false, "contextpool: several processes on ", device.str(), " need NCCL, but this program was built ",
      "without it; build it where PyTorch has CUDA and nccl.h is installed (cmake says which NCCL it found), or ",
      "train on CPUs with --device cpu");
}

}  // namespace contextpool::runtime
