// Scoring a classifier: top-1, top-5 and the figures of each class; and what its file says of its pictures.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "contextpool/models/vision.h"
#include "contextpool/tasks/image_classifier.h"
#include "contextpool/tasks/registry.h"
#include "tasks/image_data.h"

namespace contextpool::tasks {

struct ImageScore {
  std::int64_t images = 0, right = 0, right_of_five = 0;
  double loss = 0;  // mean cross-entropy, nats
  std::vector<std::int64_t> class_images, class_right;
  double top1() const { return static_cast<double>(right) / static_cast<double>(std::max<std::int64_t>(1, images)); }
  double top5() const {
    return static_cast<double>(right_of_five) / static_cast<double>(std::max<std::int64_t>(1, images));
  }
};

// In eval mode, without gradients; the mode is restored. Pictures that cannot be read do not count.
ImageScore score_images(models::ImageClassifier& model, const ImageData& data, ImageSplit split, std::int64_t batch,
                        torch::Device device, bool bfloat16, bool channels_last,
                        const std::function<void(std::int64_t, std::int64_t)>& progress = {});

OptionList classification_eval_options();
void check_classification_eval(const EvalRequest& request);
EvalResult evaluate_classification(const EvalRequest& request);

}  // namespace contextpool::tasks
