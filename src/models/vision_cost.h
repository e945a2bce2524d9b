// Counts the parameters and multiply-adds of a vision model from its sizes, without building it.
#pragma once

#include "contextpool/models/vision.h"
#include "models/vision_parts.h"

namespace contextpool::models {

class Counter {
 public:
  // Each is applied at so many positions of an image.
  void linear(int64_t in, int64_t out, int64_t positions, bool bias = true);
  void convolution(int64_t in, int64_t out, int64_t kernel, int64_t positions, bool bias, int64_t groups = 1);
  void norm(int64_t features) { cost_.parameters += 2 * features; }
  void table(int64_t numbers) { cost_.parameters += numbers; }
  // Scores and sums of `queries` tokens over `keys` each, all heads together.
  void attention(int64_t queries, int64_t keys, int64_t features);
  // A mixer on a map of height x width. It is small, so it is built: its matrices and convolutions use each of their
  // weights once a pixel.
  void mixer(const MapMixer::Options& options, int64_t height, int64_t width);

  const VisionCost& cost() const { return cost_; }

 private:
  VisionCost cost_;
};

}  // namespace contextpool::models
