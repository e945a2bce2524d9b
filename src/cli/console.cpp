#include "cli/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <utility>

namespace contextpool::cli {
namespace {

using std::chrono::steady_clock;

constexpr auto kRefresh = std::chrono::milliseconds(100), kPlainRefresh = std::chrono::milliseconds(10'000);
constexpr const char* kClearLine = "\r\x1b[K";

volatile std::sig_atomic_t caught = 0;
volatile std::sig_atomic_t second_ends = 1;

void note(int signal) {
  caught = signal;
  // A terminal that closes may say so several times, a pipe does at each write: none of these is impatience.
  if (second_ends != 0 && (signal == SIGINT || signal == SIGTERM)) std::signal(signal, SIG_DFL);
}

// Characters that fit into a line of the terminal without filling it.
std::size_t width_of(int descriptor) {
  struct winsize size {};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return std::string::npos;
  return size.ws_col - 1;
}

}  // namespace

void catch_signals(SecondSignal second) {
  second_ends = second == SecondSignal::ends ? 1 : 0;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    if (std::signal(signal, note) == SIG_IGN) std::signal(signal, SIG_IGN);  // as nohup asked
  }
}

int caught_signal() { return caught; }

Console::Console(std::int64_t print_every, int rank)
    : print_every_(print_every), rank_(rank), terminal_(::isatty(STDOUT_FILENO) == 1) {}

void Console::on_step(const train::StepReport& report) {
  const bool last = report.step == report.steps;
  const bool keep = last || report.dev || report.skipped || (print_every_ > 0 && report.step % print_every_ == 0);
  const auto now = steady_clock::now();
  if (!keep && (!terminal_ || now - last_ < kRefresh)) return;
  last_ = now;
  const auto width = terminal_ && !keep ? width_of(STDOUT_FILENO) : std::string::npos;
  std::cout << (terminal_ ? kClearLine : "") << train::progress_line(report, width) << (keep ? "\n" : "") << std::flush;
  line_open_ = !keep;
  if (!report.windows.empty()) on_message(train::windows_line(report.windows));
}

void Console::on_message(const std::string& line) {
  const auto who = rank_ == 0 ? std::string() : "rank " + std::to_string(rank_) + ": ";
  std::cout << (line_open_ ? kClearLine : "") << who << line << '\n' << std::flush;
  line_open_ = false;
}

bool Console::wants_stop() { return caught_signal() != 0; }

Progress::Progress(std::string verb, std::string unit)
    : verb_(std::move(verb)),
      unit_(std::move(unit)),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(steady_clock::now()),
      last_(terminal_ ? start_ - kRefresh : start_) {}

Progress::~Progress() {
  if (line_open_) std::cerr << kClearLine << std::flush;
}

void Progress::operator()(std::int64_t done, std::int64_t all) {
  const auto now = steady_clock::now();
  if (now - last_ < (terminal_ ? kRefresh : kPlainRefresh)) return;
  last_ = now;
  auto line = verb_ + " " + std::to_string(done) + (all > 0 ? "/" + std::to_string(all) : "") + " " + unit_;
  if (done > 0 && all > 0) {
    const auto seconds = std::chrono::duration<double>(now - start_).count();
    line += "  ETA " + train::clock_time(seconds * static_cast<double>(all - done) / static_cast<double>(done));
  }
  if (terminal_) line = kClearLine + line.substr(0, width_of(STDERR_FILENO));
  std::cerr << line << (terminal_ ? "" : "\n") << std::flush;
  line_open_ = terminal_;
}

}  // namespace contextpool::cli
