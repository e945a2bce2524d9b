#include "contextpool/models/model_file.h"

#include "base/words.h"
#include "contextpool/io/checkpoint.h"
#include "contextpool/models/registry.h"

namespace contextpool::models {
namespace {

constexpr const char* kFamilyKey = "contextpool.family";
constexpr const char* kModelKey = "contextpool.model";
constexpr const char* kFirstFamily = "language_model";  // the only one when files did not say

// A file may ask for a model that no memory could hold: that is found out before it is built.
void check_size(const ModelDescription& model, const io::SafetensorsFile& file, const std::string& name) {
  double elements = 0;
  for (const auto& entry : file.entries()) {
    elements += static_cast<double>(entry.end - entry.begin) / static_cast<double>(io::dtype_size(entry.dtype));
  }
  const auto least = model.family.least_parameters(model.options);
  TORCH_CHECK_VALUE(least <= elements, name, ": not a checkpoint of this model: the model of its metadata ",
                    "has at least ", least, " parameters, the file ", elements);
}

std::shared_ptr<torch::nn::Module> build(const ModelDescription& model, const std::string& file) {
  try {
    return model.family.build(model.options);
  } catch (const c10::Error& e) {
    TORCH_CHECK_VALUE(false, file, ": its model cannot be built: ", e.what_without_backtrace());
  }
}

}  // namespace

io::Metadata model_metadata(const Family& family, const OptionList& options, const io::Metadata& more) {
  io::Metadata metadata = more;
  metadata["format"] = "pt";
  metadata[kFamilyKey] = family.name();
  metadata[kModelKey] = to_json(options);
  return metadata;
}

ModelDescription describe_model(const io::Metadata& metadata, const std::filesystem::path& file) {
  const auto found = metadata.find(kModelKey);
  TORCH_CHECK_VALUE(found != metadata.end(), file.string(), ": its metadata has no \"", kModelKey,
                    "\": not a model of contextpool");
  const auto named = metadata.find(kFamilyKey);
  const auto name = named == metadata.end() ? std::string(kFirstFamily) : named->second;
  const Family* family = nullptr;
  try {
    family = &find_family(name);
  } catch (const c10::Error& e) {
    TORCH_CHECK_VALUE(false, file.string(), ": ", e.what_without_backtrace());
  }
  return {*family, family->read(found->second, file.string()), metadata};
}

ModelDescription describe_model(const std::filesystem::path& file) {
  return describe_model(io::SafetensorsFile(file).metadata(), file);
}

std::shared_ptr<torch::nn::Module> load_model(const std::filesystem::path& file, torch::Device device) {
  const io::SafetensorsFile opened(file);
  const auto description = describe_model(opened.metadata(), file);
  check_size(description, opened, file.string());
  auto model = build(description, file.string());
  io::load_into(io::named_tensors(*model), opened.tensors(), file.string());
  model->to(device);
  model->eval();
  return model;
}

LanguageModel load_language_model(const std::filesystem::path& file, torch::Device device) {
  return LanguageModel(load_model_of<LanguageModelImpl>(kFirstFamily, file, device));
}

RunModel model_of_run(const std::filesystem::path& run, const std::string& which) {
  check_word("contextpool", "which", which, {"newest", "best"});
  TORCH_CHECK_VALUE(std::filesystem::is_directory(run), run.string(), ": is not a run folder");
  RunModel result;
  std::filesystem::path folder;
  if (which == "best") {
    const auto best = io::best_checkpoint(run);
    TORCH_CHECK_VALUE(best, run.string(), ": no checkpoint is marked as the best; evaluate the newest");
    folder = io::checkpoint_folder(run, best->step);
    io::load_checkpoint(folder);  // an error unless it is whole
  } else {
    const auto newest = io::newest_whole(run);
    for (const auto& skipped : newest.skipped) result.note += (result.note.empty() ? "" : "; ") + skipped.why;
    TORCH_CHECK_VALUE(newest.checkpoint, run.string(), ": has no whole checkpoint",
                      result.note.empty() ? "" : " (" + result.note + ")");
    folder = newest.checkpoint->folder;
  }
  const auto average = folder / "ema.safetensors";
  result.file = std::filesystem::exists(average) ? average : folder / "model.safetensors";
  return result;
}

}  // namespace contextpool::models
