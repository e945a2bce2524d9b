#include "contextpool/runtime/readback.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace contextpool::runtime {

Readback::Readback(const torch::Tensor& tensor) : host_(tensor.detach()) {
  if (tensor.is_cpu()) return;
  const auto device = tensor.device();
  host_ = torch::empty(tensor.sizes(), torch::dtype(tensor.scalar_type()).pinned_memory(true));
  host_.copy_(tensor, /*non_blocking=*/true);
  arrived_.emplace(device.type());
  arrived_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

torch::Tensor Readback::tensor() const {
  if (arrived_) arrived_->synchronize();
  return host_;
}

}  // namespace contextpool::runtime
