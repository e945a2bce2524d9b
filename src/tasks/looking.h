// What the pages of all kinds of models have in common: which models have windows to look at, and their names.
#pragma once

#include <filesystem>

#include "contextpool/eval/looking.h"
#include "contextpool/models/model_file.h"

namespace contextpool::tasks {

// Throws unless the model has a ContextPool whose windows are Gaussian, with a weight for each token.
void check_pool(const std::filesystem::path& file, const OptionList& model_options, const nn::ContextPoolOptions& pool);
void check_layers(const std::filesystem::path& file, const eval::Looking& looking);

// "vision_transformer, 6 layers, 192 features"
std::string described(const models::ModelDescription& description);

}  // namespace contextpool::tasks
