// Models in files: a safetensors file whose metadata says which model its tensors are.
//
//   contextpool.family   name of the family; a file without it is of version 0.1.0, a language model
//   contextpool.model    the options, as a JSON object
//
// and whatever else the task that trained it needs to use it: a vocabulary, the names of classes.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <string>

#include "contextpool/io/safetensors.h"
#include "contextpool/models/family.h"
#include "contextpool/models/language_model.h"

namespace contextpool::models {

io::Metadata model_metadata(const Family& family, const OptionList& options, const io::Metadata& more = {});

// What a file says it is; an error that names the file if it says nothing, or not of a model known here.
struct ModelDescription {
  const Family& family;
  OptionList options;
  io::Metadata metadata;
};
ModelDescription describe_model(const io::Metadata& metadata, const std::filesystem::path& file);
ModelDescription describe_model(const std::filesystem::path& file);

// The model of a file, in eval mode.
std::shared_ptr<torch::nn::Module> load_model(const std::filesystem::path& file, torch::Device device);

// The same where it must be of one family, whose module is Impl; an error that names both families otherwise.
template <typename Impl>
std::shared_ptr<Impl> load_model_of(const std::string& family, const std::filesystem::path& file,
                                    torch::Device device) {
  const auto found = describe_model(file).family.name();
  TORCH_CHECK_VALUE(found == family, file.string(), ": a model of the family \"", found, "\"; expected a \"", family,
                    "\"");
  return std::dynamic_pointer_cast<Impl>(load_model(file, device));
}
LanguageModel load_language_model(const std::filesystem::path& file, torch::Device device);

// The file of a run to evaluate: of its newest checkpoint that passes verification, or of its best; the average of the
// weights where the run kept one. `note` says in a line what was skipped as broken, if anything.
struct RunModel {
  std::filesystem::path file;
  std::string note;
};
RunModel model_of_run(const std::filesystem::path& run, const std::string& which);  // "newest" or "best"

}  // namespace contextpool::models
