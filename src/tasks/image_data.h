// The pictures of a classification task, whatever their files: splits of labelled pictures of one size. Small ones are
// in memory whole, and go to the model's device; those in files are decoded when they are needed.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "contextpool/data/images/augment_batch.h"
#include "contextpool/data/images/collection.h"
#include "contextpool/data/images/loader.h"
#include "contextpool/tasks/classification.h"

namespace contextpool::tasks {

enum class ImageSplit { train, dev, test };
ImageSplit image_split_named(const std::string& name);

void check_format(const std::string& format);
bool is_central_ratio(double ratio);

// Generated pictures of any size with nothing to see in them: for measuring.
inline constexpr const char* kNoisePictures = "noise";

// One row of a training batch.
struct ImageRow {
  std::int64_t epoch, picture, copy;
};

class ImageData {
 public:
  virtual ~ImageData() = default;

  virtual const std::vector<std::string>& class_names() const = 0;
  virtual std::int64_t size(ImageSplit split) const = 0;
  virtual std::string identity() const = 0;  // JSON
  virtual const data::Normalization& normalization() const = 0;

  // Thread-safe. The tensors of a training batch, last the labels int64 [rows]; and what makes of them, on the model's
  // device, augmented float images [rows, 3, S, S].
  virtual std::vector<torch::Tensor> training_rows(std::int64_t seed, const std::vector<ImageRow>& rows) const = 0;
  virtual torch::Tensor images(const std::vector<torch::Tensor>& tensors) const = 0;

  // Pictures first, first + 1, ... of a split, as a network sees them when it is scored: float images and labels, -1
  // where a picture could not be read.
  struct Scored {
    torch::Tensor images, labels;
  };
  virtual Scored scored(ImageSplit split, std::int64_t first, std::int64_t count, torch::Device device) const = 0;

  virtual void to(torch::Device /*device*/) {}
  // Pictures that could not be read, each named once.
  std::vector<std::string> take_notes() const;

 protected:
  void note(const std::vector<data::BrokenPicture>& broken) const;

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::string> notes_;
  mutable std::int64_t broken_ = 0;
};

// Reads and checks. image_size: of the model. `normalization` is that of a trained model; without it the options say.
std::unique_ptr<ImageData> open_images(const ClassificationOptions& options, std::int64_t image_size,
                                       const std::optional<data::Normalization>& normalization = {});

}  // namespace contextpool::tasks
