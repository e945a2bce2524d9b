// Whether a training run can fit into memory, told before anything is built or written. An estimate from below:
// weights, gradients and AdamW's two averages, and of the activations that the backward pass needs those that every
// model has. What it refuses cannot run; what it lets pass may still be too large.
#pragma once

#include <torch/torch.h>

#include "contextpool/train/options.h"

namespace contextpool::train {

double least_memory(const TrainOptions& options);  // bytes

// Throws where the device has less, with what to make smaller.
void check_memory(const TrainOptions& options, torch::Device device);

}  // namespace contextpool::train
