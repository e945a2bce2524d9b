// Tells a person how work goes: one line that renews itself on a terminal and fits into it, plain lines otherwise.
// Ctrl-C, SIGTERM, SIGHUP and SIGPIPE ask for a stop of training after the current step; a second Ctrl-C or SIGTERM
// ends the program at once.
#pragma once

#include <chrono>

#include "contextpool/train/observer.h"

namespace contextpool::cli {

class Console : public train::Observer {
 public:
  // Of several processes the first one tells; the others only have messages of their own: "rank 1: ...".
  explicit Console(std::int64_t print_every, int rank = 0);
  void on_step(const train::StepReport& report) override;
  void on_message(const std::string& line) override;
  bool wants_stop() override;

 private:
  std::int64_t print_every_;
  int rank_;
  bool terminal_;
  bool line_open_ = false;
  std::chrono::steady_clock::time_point last_;
};

// "scored 120/4000 tokens  ETA 1:02" on stderr: at once and ten times a second on a terminal, else a line every ten
// seconds.
class Progress {
 public:
  Progress(std::string verb, std::string unit);
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void operator()(std::int64_t done, std::int64_t all);  // all 0: not known

 private:
  std::string verb_, unit_;
  bool terminal_, line_open_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

// From now on the signals are noted instead of ending the program, but for a second Ctrl-C or SIGTERM where that is
// asked for. The number of the one that came, or 0.
enum class SecondSignal { ends, ignored };
void catch_signals(SecondSignal second = SecondSignal::ends);
int caught_signal();

}  // namespace contextpool::cli
