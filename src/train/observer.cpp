#include "contextpool/train/observer.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <numbers>

namespace contextpool::train {
namespace {

// With `digits` after the point.
std::string fixed(double x, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, x);
  return text.data();
}

std::string short_number(double x) {
  constexpr double kMega = 1e6, kKilo = 1e3;
  if (x >= kMega) return fixed(x / kMega, 2) + "M";
  if (x >= kKilo) return fixed(x / kKilo, 1) + "k";
  return fixed(x, 0);
}

std::string clock(double seconds) {
  constexpr std::int64_t kMinute = 60, kHour = 3600;
  const std::int64_t s = std::llround(seconds);
  const auto two = [](std::int64_t n) { return (n < 10 ? ":0" : ":") + std::to_string(n); };
  if (s < kHour) return std::to_string(s / kMinute) + two(s % kMinute);
  return std::to_string(s / kHour) + two(s % kHour / kMinute) + two(s % kMinute);
}

}  // namespace

std::string progress_line(const StepReport& report) {
  constexpr double kMega = 1e6;
  const auto bpc = [](double nats) { return fixed(nats / std::numbers::ln2, 3) + " bpc"; };
  auto line = "step " + std::to_string(report.step) + "/" + std::to_string(report.steps);
  line += report.skipped ? "  skipped: loss or gradient not finite"
                         : "  loss " + fixed(report.loss, 4) + "  " + bpc(report.loss);
  if (report.dev_loss) line += "  dev " + bpc(*report.dev_loss);
  line += "  " + short_number(report.tokens_per_second) + " tokens/s";
  line += "  " + fixed(static_cast<double>(report.memory) / kMega, 0) + " MB";
  return line + "  ETA " + clock(report.seconds_left);
}

}  // namespace contextpool::train
