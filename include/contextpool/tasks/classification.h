// Image classification: which of the classes is in a picture. A batch is rows of an epoch's permutation, augmented by
// choices that are a function of (seed, epoch, picture, copy); the loss is the cross-entropy with smoothed, perhaps
// mixed targets; the score is the accuracy on the dev pictures.
//
// Data by their format:
//   cifar10, cifar100   the official binary files; the last `dev_images` of a fixed shuffle of the training pictures
//                       are the dev split, the test file is the test split
//   folder              train/CLASS/*.jpg and val/CLASS/*.jpg (png too), or the same in tar shards (train/*.tar,
//                       val/*.tar); val is both dev and test
//   shapes              generated, no file: ten shapes of varying size on noise, 32 x 32
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>

#include "contextpool/tasks/registry.h"

namespace contextpool::tasks {

struct ClassificationOptions {
  std::string data;
  std::string format = "auto";
  std::int64_t dev_images = 5000;
  std::int64_t eval_batch = 256;
  double label_smoothing = 0;
  std::int64_t pad = 4;
  double flip = 0.5;
  double erase = 0;
  double mixup = 0;
  double cutmix = 0;
  std::string rand_augment;
  double jitter = 0;
  double min_area = 0.08;
  double central_ratio = 0.875;
  std::int64_t repeats = 1;
  std::string normalization = "auto";
  std::string weights;
  bool channels_last = false;
};

template <typename Options, typename F>
requires std::same_as<std::remove_const_t<Options>, ClassificationOptions>
void for_each_option(Options& options, F f) {
  f("data", options.data, "folder of pictures; of CIFAR's binary files; or the word shapes, for generated ones");
  f("format", options.format, "of the data: auto, cifar10, cifar100, folder or shapes");
  f("dev_images", options.dev_images, "training pictures that are held out to choose by (cifar10, cifar100, shapes)");
  f("eval_batch", options.eval_batch, "pictures at once when scoring");
  f("label_smoothing", options.label_smoothing, "share of the target that all classes get");
  f("pad", options.pad, "small pictures: black pixels around, out of which a crop is cut");
  f("flip", options.flip, "probability of a flip, left to right");
  f("erase", options.erase, "probability of a random box of noise");
  f("mixup", options.mixup, "alpha of Mixup; 0: none");
  f("cutmix", options.cutmix, "alpha of CutMix; 0: none");
  f("rand_augment", options.rand_augment, "folders: RandAugment, such as rand-m9-mstd0.5-inc1; empty: none");
  f("jitter", options.jitter, "folders: colour jitter, where there is no RandAugment");
  f("min_area", options.min_area, "folders: smallest share of a picture's area in a random crop");
  f("central_ratio", options.central_ratio, "folders: share of the short side in the central crop, when scoring");
  f("repeats", options.repeats, "copies of a picture side by side in an epoch, which then shows 1 / repeats of them");
  f("normalization", options.normalization,
    "of pixels: cifar, imagenet or half (mean and deviation 0.5); auto: cifar for small pictures, else imagenet");
  f("weights", options.weights,
    "start from these: a run, or a safetensors file with the names of timm, torchvision, Microsoft or this program");
  f("channels_last", options.channels_last, "memory format of images and convolutions");
}

std::unique_ptr<TaskKind> classification();

}  // namespace contextpool::tasks
