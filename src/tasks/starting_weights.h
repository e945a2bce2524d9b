// The weights that a classifier starts from where others trained them, or an earlier run.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "contextpool/models/family.h"

namespace contextpool::tasks {

// Loads those of `from`, a run's folder (of its newest checkpoint that passes) or a safetensors file, by the rename
// tables of models/foreign.h: tables of positions are resized, mixers that the file does not have start as they start,
// and so does the head where the file's is for other classes. Throws, and leaves the model as it was, where anything
// else differs. What was done, in a line.
std::string start_from(torch::nn::Module& model, const models::Family& family, const std::string& from,
                       const std::vector<std::string>& class_names);

}  // namespace contextpool::tasks
