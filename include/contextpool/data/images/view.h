// A picture as a network sees it: cropped, resized, and in training augmented. A pure function of the file's bytes, the
// options and (seed, epoch, index). No torch needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "contextpool/data/images/choices.h"
#include "contextpool/data/images/decode.h"

namespace contextpool::data {

struct ViewOptions {
  std::int64_t size = 224;
  Filter filter = Filter::bicubic;
  ImageLimits limits = {};
  // Evaluation: central_box() with this ratio.
  double central_ratio = 0.875;
  // Training: random resized crop, flip, then RandAugment or colour jitter.
  CropOptions crop = {};
  double flip_probability = 0.5;
  bool use_rand_augment = false;
  RandAugmentOptions rand_augment = {};
  double jitter = 0;
  OperationOptions operations = {};
  bool reduce = true;  // JPEGs are decoded at 1/2 or 1/4 where the crop is so much larger than the view
};

// size x size pixels, written to `out` (3 size^2 bytes, red, green, blue of a pixel side by side).
void view_for_training(std::span<const std::byte> bytes, const ViewOptions& options, std::int64_t seed,
                       std::int64_t epoch, std::int64_t index, std::uint8_t* out);
void view_for_evaluation(std::span<const std::byte> bytes, const ViewOptions& options, std::uint8_t* out);

}  // namespace contextpool::data
