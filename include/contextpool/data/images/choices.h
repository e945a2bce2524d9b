// What augmentation chooses for a picture, apart from doing it. The laws are those of timm and torchvision; the numbers
// are ours (draws.h). No torch needed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "contextpool/data/images/draws.h"
#include "contextpool/data/images/image.h"
#include "contextpool/data/images/operations.h"

namespace contextpool::data {

// Random resized crop: an area uniform in [min_area, max_area] of the picture and an aspect ratio log-uniform in
// [min_ratio, max_ratio], anywhere it fits; ten attempts, then the largest central box of an allowed ratio.
struct CropOptions {
  double min_area = 0.08;
  double max_area = 1;
  double min_ratio = 3.0 / 4;
  double max_ratio = 4.0 / 3;
};
Box random_resized_crop(std::int64_t width, std::int64_t height, const CropOptions& options, Draws draws);

// For evaluation: the short side resized to floor(size / ratio), then a central square of `size`. As a box of the
// original picture: resizing it to size x size gives the pixels of resizing all and cropping.
RealBox central_box(std::int64_t width, std::int64_t height, std::int64_t size, double ratio = 0.875);

// Repeated augmentation: place `place` of an epoch's order shows picture place / repeats of it, its copy place %
// repeats. An epoch keeps its length, rounded down to a multiple of 256 as in DeiT, and so shows 1 / repeats of the
// pictures.
struct Repeat {
  std::int64_t place;
  std::int64_t copy;
};
Repeat repeated(std::int64_t place, std::int64_t repeats);
std::int64_t repeated_epoch(std::int64_t pictures);
// The index for Draws of a copy of a picture.
std::int64_t index_of_copy(std::int64_t picture, std::int64_t copy);

// RandAugment as timm's "rand-m9-mstd0.5-inc1": `layers` of the 15 increasing operations, each drawn with replacement
// and done with a chance of one half, at a strength that is normal around `magnitude` and cut to [0, 10].
struct RandAugmentOptions {
  double magnitude = 9;
  double deviation = 0.5;
  std::int64_t layers = 2;
  double probability = 0.5;
};
// "rand-m9-mstd0.5-inc1" and the like: m, mstd, n (layers), p (probability), inc1. Throws io::Error at anything else.
RandAugmentOptions rand_augment_named(const std::string& text);
std::vector<Operation> rand_augment(const RandAugmentOptions& options, Draws draws);

// Colour jitter: brightness, contrast and saturation scaled by factors uniform in [1 - strength, 1 + strength] (from
// 0), in random order.
std::vector<Operation> colour_jitter(double strength, Draws draws);

// Random erasing: with `probability`, a box whose area is uniform in [min_area, max_area] of the picture and whose
// aspect ratio is log-uniform in [min_ratio, 1 / min_ratio], strictly smaller than the picture; ten attempts. Empty if
// there is none.
struct EraseOptions {
  double probability = 0.25;
  double min_area = 0.02;
  double max_area = 1.0 / 3;
  double min_ratio = 0.3;
};
Box random_erasing(std::int64_t width, std::int64_t height, const EraseOptions& options, Draws draws);

// Mixup and CutMix of a batch with itself in reverse order, as in timm: picture i becomes lambda x[i] + (1 - lambda)
// x[B - 1 - i] (mixup), or x[i] with `box` of x[B - 1 - i] (CutMix; lambda is the part of the area that is left);
// targets are mixed by lambda.
struct MixOptions {
  double mixup = 0.8;  // Beta(mixup, mixup); 0: none
  double cutmix = 1;
  double probability = 1;
  double switch_probability = 0.5;  // of CutMix, where both are on
};
struct Mix {
  double lambda = 1;
  Box box;  // of CutMix; empty for mixup
};
Mix choose_mix(std::int64_t width, std::int64_t height, const MixOptions& options, Draws draws);

}  // namespace contextpool::data
