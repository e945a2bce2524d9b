// Gloo, as torch carries it. The network interface is torch's choice, or GLOO_SOCKET_IFNAME's.
#define USE_C10D_GLOO  // without which the header is empty; torch's packages have Gloo
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "runtime/group.h"

namespace contextpool::runtime {

Backend make_gloo(const Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  const auto options = c10d::ProcessGroupGloo::Options::create_default(timeout);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace contextpool::runtime
