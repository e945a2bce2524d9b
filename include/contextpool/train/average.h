// The exponential moving average of a model, e <- d e + (1 - d) p, with d = min(decay, (1 + t) / (10 + t)) at the t-th
// update, so that the random start is soon forgotten. Of parameters and of buffers such as BatchNorm's statistics, so
// that its tensors are a whole model; what counts in whole numbers is copied.
#pragma once

#include <cstdint>
#include <vector>

#include "contextpool/io/safetensors.h"

namespace contextpool::train {

class Average {
 public:
  // Starts as a copy of the model's tensors (io::named_tensors). decay in (0, 1).
  Average(const io::NamedTensors& model, double decay);

  // The updates so far, t: those of a run that is resumed.
  void begin_at(std::int64_t t) { t_.fill_(t); }
  // Unless `skip` (Optimizer::step_unless) is 1.
  void update(const torch::Tensor& skip = {});
  const io::NamedTensors& tensors() const { return average_; }

 private:
  friend class AverageInPlace;
  io::NamedTensors model_, average_;
  double decay_;
  torch::Tensor t_;  // float64, on the model's device, since nobody waits to see what was skipped
};

// While it lives, the model computes with the average.
class AverageInPlace {
 public:
  explicit AverageInPlace(Average& average);
  ~AverageInPlace();
  AverageInPlace(const AverageInPlace&) = delete;
  AverageInPlace& operator=(const AverageInPlace&) = delete;

 private:
  Average& average_;
  std::vector<torch::Tensor> kept_;
};

}  // namespace contextpool::train
