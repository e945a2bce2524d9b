// What a training run tells while it goes, and how it is told to stop.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contextpool/tasks/task.h"

namespace contextpool::train {

struct StepReport {
  std::int64_t step = 0, steps = 0;         // done, of
  double loss = 0;                          // not finite if the step was skipped
  std::vector<tasks::Figure> figures = {};  // the loss in other words
  double lr = 0, gradient_norm = 0;
  bool skipped = false;
  std::int64_t units = 0;  // of all steps so far
  std::optional<tasks::Score> dev = std::nullopt;
  std::vector<nn::WindowStatistics> windows = {};  // by layer, where the dev data were scored and there is ContextPool
  double seconds = 0;                              // of this step
  double waited = 0;                               // seconds of them, for data
  double units_per_second = 0;                     // of the last steps
  std::string unit = "tokens";
  double seconds_left = 0;
  std::int64_t memory = 0;  // bytes, at most so far
};

// "step 120/1000  loss 1.2345  1.781 bpc  4.5k tokens/s  812 MB  ETA 1:02", without what matters least where it would
// have more than `width` characters.
std::string progress_line(const StepReport& report, std::size_t width = std::string::npos);

// "windows by layer, sigma +- spread (tokens): 4.0 +- 0.1 (6.8), 3.2 +- 0.9 (5.1)"
std::string windows_line(const std::vector<nn::WindowStatistics>& windows);

// "1:02", "1:01:02"
std::string clock_time(double seconds);

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_step(const StepReport& report) = 0;
  virtual void on_message(const std::string& line) = 0;
  virtual bool wants_stop() = 0;  // asked before every step
};

}  // namespace contextpool::train
