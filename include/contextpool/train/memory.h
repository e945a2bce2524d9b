// Whether a training run can fit into memory, told before anything is built or written. An estimate from below:
// weights, gradients and the optimizer's state, and of the activations that the backward pass needs those that the task
// says every model of its kind has. What it refuses cannot run; what it lets pass may still be too large.
#pragma once

#include <torch/torch.h>

#include "contextpool/tasks/registry.h"
#include "contextpool/train/options.h"

namespace contextpool::train {

// Bytes. model_options as the task's kind completes them.
double least_memory(const TrainOptions& options, const tasks::TaskKind& kind, const models::Family& family,
                    const OptionList& model_options);

// Throws where the device has less, with what to make smaller.
void check_memory(const TrainOptions& options, const tasks::TaskKind& kind, const models::Family& family,
                  const OptionList& model_options, torch::Device device);

}  // namespace contextpool::train
