// Models in files: a safetensors file whose metadata says which model its tensors are.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <string>

#include "contextpool/io/safetensors.h"
#include "contextpool/models/language_model.h"

namespace contextpool::eval {

// The metadata of a model's file: contextpool.model is the JSON of its options, contextpool.length the tokens of the
// rows that it was trained on last (0: not known, and left out).
io::Metadata model_metadata(const models::LanguageModelOptions& options, std::int64_t length = 0);
std::int64_t trained_length(const std::filesystem::path& file);  // 0 where the file does not say
// Back from it; an error that names the file if it says nothing, or not of a model known here.
models::LanguageModelOptions model_options(const io::Metadata& metadata, const std::filesystem::path& file);

// Parameters that a model of these options has at least: its large matrices. Nothing is built.
double least_parameters(const models::LanguageModelOptions& options);

// The model of a file, in eval mode.
models::LanguageModel load_model(const std::filesystem::path& file, torch::Device device);

// The file of a run to evaluate: of its newest checkpoint that is whole, or of its best; the average of the weights
// where the run kept one. `note` says in a line what was skipped as broken, if anything.
struct RunModel {
  std::filesystem::path file;
  std::string note;
};
RunModel model_of_run(const std::filesystem::path& run, const std::string& which);  // "newest" or "best"

}  // namespace contextpool::eval
