// Tells a person how training goes: one line that renews itself on a terminal, plain lines otherwise. Ctrl-C and
// SIGTERM ask for a stop after the current step; a second one ends the program at once.
#pragma once

#include <chrono>

#include "contextpool/train/observer.h"

namespace contextpool::cli {

class Console : public train::Observer {
 public:
  explicit Console(std::int64_t print_every);
  void on_step(const train::StepReport& report) override;
  void on_message(const std::string& line) override;
  bool wants_stop() override;

 private:
  std::int64_t print_every_;
  bool terminal_;
  bool line_open_ = false;
  std::chrono::steady_clock::time_point last_;
};

// From now on the two signals are noted instead of ending the program. The number of the one that came, or 0.
void catch_signals();
int caught_signal();

}  // namespace contextpool::cli
