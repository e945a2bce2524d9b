// A trained classifier of pictures, from its file: what `contextpool classify` uses.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "contextpool/data/images/augment_batch.h"
#include "contextpool/models/vision.h"

namespace contextpool::tasks {

// Metadata: the names of the classes, a JSON list; how pictures were normalized and cropped, a JSON object.
constexpr const char* kClassesKey = "contextpool.classes";
constexpr const char* kImagesKey = "contextpool.images";
std::string classes_metadata(const std::vector<std::string>& names);
// Metadata are UTF-8, and so must the names be. `who`: where they are from.
void check_class_names(const std::vector<std::string>& names, const std::string& who);
// cifar, imagenet or half (mean and deviation 0.5).
data::Normalization normalization_named(const std::string& name);
std::string images_metadata(const data::Normalization& normalization, double central_ratio);

class TrainedClassifier {
 public:
  // Throws if the file is not that of a classifier of pictures.
  TrainedClassifier(const std::filesystem::path& file, torch::Device device);

  const std::vector<std::string>& class_names() const { return class_names_; }
  models::ImageClassifier& model() { return *model_; }
  // False where the file does not say; they are "class 0", "class 1", ... then.
  bool knows_class_names() const { return knows_class_names_; }
  std::int64_t image_size() const { return image_size_; }
  // How the pictures were normalized and cropped that it was trained on.
  const data::Normalization& normalization() const { return normalization_; }
  double central_ratio() const { return central_ratio_; }
  torch::Device device() const { return device_; }

  // A JPEG or PNG file's bytes cropped as for the network, uint8 [1, side, side, 3]. Throws data::ImageError.
  torch::Tensor pixels(std::span<const std::byte> bytes, std::int64_t side) const;
  // As the network sees them, float [1, 3, S, S].
  torch::Tensor view(std::span<const std::byte> bytes) const;
  // The likeliest classes and their probabilities, the first the likeliest.
  std::vector<std::pair<std::string, double>> classify(std::span<const std::byte> bytes, std::int64_t top);

 private:
  std::shared_ptr<models::ImageClassifier> model_;
  torch::Device device_;
  std::vector<std::string> class_names_;
  bool knows_class_names_ = true;
  std::int64_t image_size_ = 0;
  data::Normalization normalization_;
  double central_ratio_ = 0.875;
};

}  // namespace contextpool::tasks
