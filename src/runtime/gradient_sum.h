// Gradients over processes, by c10d's Reducer.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "contextpool/runtime/processes.h"

namespace contextpool::runtime {

std::unique_ptr<GradientSum> make_gradient_sum(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                               const std::vector<torch::Tensor>& parameters);

}  // namespace contextpool::runtime
