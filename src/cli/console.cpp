#include "cli/console.h"

#include <unistd.h>

#include <csignal>
#include <iostream>

namespace contextpool::cli {
namespace {

constexpr auto kRefresh = std::chrono::milliseconds(100);
constexpr const char* kClearLine = "\r\x1b[K";

volatile std::sig_atomic_t caught = 0;

void note(int signal) {
  caught = signal;
  std::signal(signal, SIG_DFL);
}

}  // namespace

void catch_signals() {
  std::signal(SIGINT, note);
  std::signal(SIGTERM, note);
}

int caught_signal() { return caught; }

Console::Console(std::int64_t print_every) : print_every_(print_every), terminal_(::isatty(STDOUT_FILENO) == 1) {}

void Console::on_step(const train::StepReport& report) {
  const bool last = report.step == report.steps;
  const bool keep = last || report.dev_loss || report.skipped || (print_every_ > 0 && report.step % print_every_ == 0);
  const auto now = std::chrono::steady_clock::now();
  if (!keep && (!terminal_ || now - last_ < kRefresh)) return;
  last_ = now;
  std::cout << (terminal_ ? kClearLine : "") << train::progress_line(report) << (keep ? "\n" : "") << std::flush;
  line_open_ = !keep;
}

void Console::on_message(const std::string& line) {
  std::cout << (line_open_ ? kClearLine : "") << line << '\n' << std::flush;
  line_open_ = false;
}

bool Console::wants_stop() { return caught_signal() != 0; }

}  // namespace contextpool::cli
