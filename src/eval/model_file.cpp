#include "contextpool/eval/model_file.h"

#include <charconv>

#include "contextpool/io/checkpoint.h"
#include "nn/names.h"

namespace contextpool::eval {
namespace {

constexpr const char* kModelKey = "contextpool.model";
constexpr const char* kLengthKey = "contextpool.length";

// A file may ask for a model that no memory could hold: that is found out before it is built.
void check_size(const models::LanguageModelOptions& options, const io::SafetensorsFile& file, const std::string& name) {
  double elements = 0;
  for (const auto& entry : file.entries()) {
    elements += static_cast<double>(entry.end - entry.begin) / static_cast<double>(io::dtype_size(entry.dtype));
  }
  TORCH_CHECK_VALUE(least_parameters(options) <= elements, name,
                    ": not a checkpoint of this model: the model of its metadata ", "has at least ",
                    least_parameters(options), " parameters, the file ", elements);
}

models::LanguageModel build(const models::LanguageModelOptions& options, const std::string& file) {
  try {
    return models::LanguageModel(options);
  } catch (const c10::Error& e) {
    TORCH_CHECK_VALUE(false, file, ": its model cannot be built: ", e.what_without_backtrace());
  }
}

// Of a layer's mixers.
double mixer_parameters(const models::LanguageModelOptions& options) {
  double count = 0;
  try {
    for (const auto& [place, mixer] : nn::mixers_of(models::block_of(options, 0))) count += nn::least_parameters(mixer);
  } catch (const c10::Error&) {
    return 0;  // a mixer or a place that is not known: building the model says which
  }
  return count;
}

}  // namespace

double least_parameters(const models::LanguageModelOptions& o) {
  const auto size = [](std::int64_t n) { return static_cast<double>(n); };
  const auto features = size(o.features);
  auto layer = features * (4 * features + 2 * size(o.feedforward));
  layer += mixer_parameters(o);
  const auto learned = o.positions == "learned" ? size(o.length) : 0;
  return size(o.layers) * layer + (2 * size(o.vocabulary) + learned) * features;
}

io::Metadata model_metadata(const models::LanguageModelOptions& options, std::int64_t length) {
  io::Metadata metadata = {{"format", "pt"}, {kModelKey, models::to_json(options)}};
  if (length > 0) metadata[kLengthKey] = std::to_string(length);
  return metadata;
}

std::int64_t trained_length(const std::filesystem::path& file) {
  const io::SafetensorsFile opened(file);
  const auto found = opened.metadata().find(kLengthKey);
  if (found == opened.metadata().end()) return 0;
  std::int64_t length = 0;
  const auto& word = found->second;
  const auto result = std::from_chars(word.data(), word.data() + word.size(), length);
  TORCH_CHECK_VALUE(result.ec == std::errc() && length > 0, file.string(), ": the metadata \"", kLengthKey,
                    "\" is not a positive number");
  return length;
}

models::LanguageModelOptions model_options(const io::Metadata& metadata, const std::filesystem::path& file) {
  const auto found = metadata.find(kModelKey);
  TORCH_CHECK_VALUE(found != metadata.end(), file.string(), ": its metadata has no \"", kModelKey,
                    "\": not a model of contextpool");
  return models::from_json(found->second, file.string());
}

models::LanguageModel load_model(const std::filesystem::path& file, torch::Device device) {
  const io::SafetensorsFile opened(file);
  const auto options = model_options(opened.metadata(), file);
  check_size(options, opened, file.string());
  auto model = build(options, file.string());
  io::load_into(io::named_tensors(*model), opened.tensors(), file.string());
  model->to(device);
  model->eval();
  return model;
}

RunModel model_of_run(const std::filesystem::path& run, const std::string& which) {
  nn::check_word("contextpool", "which", which, {"newest", "best"});
  TORCH_CHECK_VALUE(std::filesystem::is_directory(run), run.string(), ": is no run folder");
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

}  // namespace contextpool::eval
