// A tensor on its way from a device to the CPU. Making one only enqueues the copy; tensor() waits for it, and for what
// was enqueued before it, but for nothing that came later.
#pragma once

#include <c10/core/Event.h>
#include <torch/torch.h>

#include <optional>

namespace contextpool::runtime {

class Readback {
 public:
  explicit Readback(const torch::Tensor& tensor);
  torch::Tensor tensor() const;

 private:
  torch::Tensor host_;
  std::optional<c10::Event> arrived_;  // none where the tensor was on the CPU
};

}  // namespace contextpool::runtime
