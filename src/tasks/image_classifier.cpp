#include "contextpool/tasks/image_classifier.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/words.h"
#include "contextpool/data/images/view.h"
#include "contextpool/data/translation/utf8.h"
#include "contextpool/io/error.h"
#include "contextpool/models/model_file.h"

namespace contextpool::tasks {

using Json = nlohmann::json;

std::string classes_metadata(const std::vector<std::string>& names) { return Json(names).dump(); }

void check_class_names(const std::vector<std::string>& names, const std::string& who) {
  for (const auto& name : names) {
    TORCH_CHECK_VALUE(data::is_valid_utf8(name), who, ": the name of the class ", io::in_quotes(name),
                      " is not UTF-8, in which it would be kept beside the weights");
  }
}

data::Normalization normalization_named(const std::string& name) {
  check_word("contextpool", "normalization", name, {"cifar", "imagenet", "half"});
  if (name == "cifar") return data::kCifarNormalization;
  if (name == "imagenet") return {};
  return {{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}};
}

std::string images_metadata(const data::Normalization& normalization, double central_ratio) {
  return Json{{"mean", normalization.mean}, {"deviation", normalization.deviation}, {"central_ratio", central_ratio}}
      .dump();
}

TrainedClassifier::TrainedClassifier(const std::filesystem::path& file, torch::Device device) : device_(device) {
  const auto description = models::describe_model(file);
  model_ = std::dynamic_pointer_cast<models::ImageClassifier>(models::load_model(file, device));
  TORCH_CHECK_VALUE(model_ != nullptr, file.string(), ": a model of the family \"", description.family.name(),
                    "\", which does not classify pictures");
  image_size_ = description.options.get<std::int64_t>("image_size");
  const auto classes = description.options.get<std::int64_t>("classes");
  const auto read = [&](const char* key) {
    const auto found = description.metadata.find(key);
    return found == description.metadata.end() ? Json() : Json::parse(found->second, nullptr, false);
  };
  try {
    if (const auto names = read(kClassesKey); !names.is_null()) class_names_ = names.get<std::vector<std::string>>();
    if (const auto images = read(kImagesKey); !images.is_null()) {
      images.at("mean").get_to(normalization_.mean);
      images.at("deviation").get_to(normalization_.deviation);
      images.at("central_ratio").get_to(central_ratio_);
    }
  } catch (const Json::exception& e) {
    TORCH_CHECK_VALUE(false, file.string(),
                      ": what its metadata says of classes and pictures cannot be read: ", e.what());
  }
  knows_class_names_ = !class_names_.empty();
  if (!knows_class_names_) {  // a file of another program
    for (std::int64_t i = 0; i < classes; ++i) class_names_.push_back("class " + std::to_string(i));
  }
  TORCH_CHECK_VALUE(static_cast<std::int64_t>(class_names_.size()) == classes, file.string(), ": its metadata has ",
                    class_names_.size(), " names for ", classes, " classes");
}

torch::Tensor TrainedClassifier::pixels(std::span<const std::byte> bytes, std::int64_t side) const {
  data::ViewOptions options;
  options.size = side;
  options.central_ratio = central_ratio_;
  auto pixels = torch::empty({1, side, side, data::kColours}, torch::kByte);
  data::view_for_evaluation(bytes, options, pixels.mutable_data_ptr<std::uint8_t>());
  return pixels;
}

torch::Tensor TrainedClassifier::view(std::span<const std::byte> bytes) const {
  return data::normalize_batch(pixels(bytes, image_size_).permute({0, 3, 1, 2}).to(device_), normalization_);
}

std::vector<std::pair<std::string, double>> TrainedClassifier::classify(std::span<const std::byte> bytes,
                                                                        std::int64_t top) {
  const torch::NoGradGuard no_grad;
  const auto probabilities = model_->forward(view(bytes)).to(torch::kDouble).softmax(1)[0].cpu();
  const auto [values, indices] = probabilities.topk(std::min<std::int64_t>(top, probabilities.size(0)));
  std::vector<std::pair<std::string, double>> all;
  for (std::int64_t i = 0; i < values.size(0); ++i) {
    const auto name = static_cast<std::size_t>(indices[i].item<std::int64_t>());
    all.emplace_back(class_names_[name], values[i].item<double>());
  }
  return all;
}

}  // namespace contextpool::tasks
