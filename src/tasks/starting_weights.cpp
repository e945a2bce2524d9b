#include "tasks/starting_weights.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "contextpool/io/safetensors.h"
#include "contextpool/models/foreign.h"
#include "contextpool/models/model_file.h"
#include "contextpool/tasks/image_classifier.h"

namespace contextpool::tasks {
namespace {

namespace fs = std::filesystem;

// A file of ours says what it is; files of others have no such metadata.
bool is_ours(const io::Metadata& metadata) { return metadata.contains("contextpool.model"); }

void check_family(const io::Metadata& metadata, const models::Family& family, const fs::path& file) {
  const auto found = models::describe_model(metadata, file).family.name();
  TORCH_CHECK_VALUE(found == family.name(), file.string(), ": a model of the family \"", found, "\"; expected a \"",
                    family.name(), "\"");
}

// Whether a file says that its classes are others, be they as many.
bool has_other_classes(const io::Metadata& metadata, const std::vector<std::string>& class_names) {
  const auto found = metadata.find(kClassesKey);
  return found != metadata.end() && found->second != classes_metadata(class_names);
}

std::string summary_of(const fs::path& file, const models::ForeignReport& report, std::size_t classes, bool ours) {
  const bool head = std::any_of(report.kept.begin(), report.kept.end(),
                                [](const auto& name) { return name.starts_with("head") || name.starts_with("fc."); });
  const auto mixers = std::count_if(report.kept.begin(), report.kept.end(), [](const auto& name) {
    return !name.starts_with("head") && !name.starts_with("fc.") && !name.ends_with("num_batches_tracked");
  });
  std::string line = "started from " + file.string() + (ours ? "" : " (names of " + report.source + ")");
  if (!report.resized.empty()) {
    line += "; resized " + report.resized.front();
    if (report.resized.size() > 1) line += " and " + std::to_string(report.resized.size() - 1) + " more";
  }
  const auto there = static_cast<std::size_t>(report.classes);
  if (head && there == classes) line += "; the head is new: the file's classes have other names";
  if (head && there != classes) {
    line += "; the head is new: " + std::to_string(classes) + " classes here, " +
            (there > 0 ? std::to_string(there) : std::string("none")) + " in the file";
  }
  if (mixers > 0) line += "; " + std::to_string(mixers) + " tensors of mixers are new";
  return line;
}

}  // namespace

std::string start_from(torch::nn::Module& model, const models::Family& family, const std::string& from,
                       const std::vector<std::string>& class_names) {
  const auto file = fs::is_directory(from) ? models::model_of_run(from, "newest").file : fs::path(from);
  const io::SafetensorsFile opened(file);
  const bool ours = is_ours(opened.metadata());
  if (ours) check_family(opened.metadata(), family, file);
  models::ForeignOptions options;
  options.replace_head = true;
  options.drop_head = ours && has_other_classes(opened.metadata(), class_names);
  options.who = file.string();
  const auto report = models::load_foreign(model, opened.tensors(), options);
  return summary_of(file, report, class_names.size(), ours);
}

}  // namespace contextpool::tasks
